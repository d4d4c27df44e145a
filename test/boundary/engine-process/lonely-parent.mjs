/** A parent that starts the engine, prints its process id when it runs something, and waits to be killed. */
import { EngineSupervisor } from '../../../dist/control/engine/supervisor.js';

const { config, entry, request } = JSON.parse(process.argv[2]);
const supervisor = new EngineSupervisor({ config, entry, maxWaitingRequests: 10, maxWaitingTokens: 1000 });
await supervisor.ready();
const promptIds = Int32Array.from(request.promptIds);
const sampling = { ...request.sampling, seed: 1n, stopIds: new Int32Array(0) };
let told = false;
supervisor.submit([{ promptIds, sampling, priority: 0, tenant: 'a' }], () => {
  if (!told) console.log(`running ${supervisor.pid}`);
  told = true;
});
