/** Which requests are of clients of the Messages API: their keys, their errors and the ids of their answers have the forms of that interface. */
import type { IncomingHttpHeaders } from 'node:http';

const MESSAGES = '/v1/messages';
const MODELS = '/v1/models';
/** All of its clients send it. */
const VERSION = 'anthropic-version';

function isAtOrBelow(path: string, root: string): boolean {
  return path === root || path.startsWith(`${root}/`);
}

/** Also clients of other interfaces ask for these models: the header tells whose form the answer has. */
export function isOfMessages(path: string, headers: IncomingHttpHeaders): boolean {
  return isAtOrBelow(path, MESSAGES) || (isAtOrBelow(path, MODELS) && (headers[VERSION] ?? '') !== '');
}

/** Where `x-api-key` is a key. */
export function takesApiKeyHeader(path: string): boolean {
  return isAtOrBelow(path, MESSAGES) || isAtOrBelow(path, MODELS);
}
