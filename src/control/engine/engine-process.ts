/** The engine process: the scheduler and the native addon, apart from the API so that a crash takes only them. */
import { loadNative } from './native.ts';
import { raiseOomScore } from './oom-score.ts';
import { serveParent } from './process-port.ts';

raiseOomScore();
serveParent(loadNative);
