/**
 * Reads a URL that a client named. The host is resolved once, every address must be public, and the connection goes to one of those addresses:
 * a name that changes its mind afterwards changes nothing. Redirects are followed by the same rules. Sizes and times are bounded.
 */
import { lookup as dnsLookup } from 'node:dns';
import { request as httpRequest, type IncomingMessage, type RequestOptions } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { isIP, type LookupFunction } from 'node:net';
import { untilAborted } from '../../until-aborted.ts';
import { isPublicAddress } from './public-address.ts';

export interface FetchLimits {
  /** Host names that may be read; `*` stands for every public host. */
  hosts: readonly string[];
  maxBytes: number;
  /** Until the answer begins, and between two pieces of it. */
  idleTimeoutMs: number;
  totalTimeoutMs: number;
}

export interface FetchNetwork {
  /** All addresses of a name. `signal`: nobody waits any more. */
  resolve(host: string, signal: AbortSignal): Promise<string[]>;
  allowed(address: string): boolean;
}

/** Its message is for the client. */
export class FetchRefusedError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'FetchRefusedError';
  }
}

const MAX_REDIRECTS = 5;

export const PUBLIC_NETWORK: FetchNetwork = { resolve: resolveAll, allowed: isPublicAddress };

/** The bytes of the answer. Throws FetchRefusedError, also while it is read. */
export async function* guardedFetch(
  text: string,
  limits: FetchLimits,
  network: FetchNetwork = PUBLIC_NETWORK,
): AsyncGenerator<Uint8Array> {
  const deadline = AbortSignal.timeout(limits.totalTimeoutMs);
  let url = parseUrl(text);
  for (let redirects = 0; ; redirects++) {
    const response = await open(url, limits, network, deadline);
    const status = response.statusCode ?? 0;
    if (status < 300 || status >= 400) {
      yield* read(response, limits, deadline);
      return;
    }
    response.destroy();
    const location = response.headers.location;
    if (location === undefined) throw new FetchRefusedError(`The host answered ${status} without a location.`);
    if (redirects >= MAX_REDIRECTS) throw new FetchRefusedError(`The URL redirects more than ${MAX_REDIRECTS} times.`);
    const next = parseUrl(location, url);
    if (url.protocol === 'https:' && next.protocol === 'http:') {
      throw new FetchRefusedError('The URL redirects from https to http.');
    }
    url = next;
  }
}

function parseUrl(text: string, base?: URL): URL {
  let url: URL;
  try {
    url = new URL(text, base);
  } catch {
    throw new FetchRefusedError('It is not a valid URL.');
  }
  if (url.protocol !== 'http:' && url.protocol !== 'https:') {
    throw new FetchRefusedError(`The scheme ${url.protocol} is not allowed.`);
  }
  if (url.username !== '' || url.password !== '') throw new FetchRefusedError('A URL with a user name is not allowed.');
  return url;
}

async function open(
  url: URL,
  limits: FetchLimits,
  network: FetchNetwork,
  deadline: AbortSignal,
): Promise<IncomingMessage> {
  const host = url.hostname.replace(/^\[|\]$/g, '');
  // A URL's host is in small letters, whoever wrote it.
  if (!limits.hosts.includes('*') && !limits.hosts.some((name) => name.toLowerCase() === host)) {
    throw new FetchRefusedError('The server does not read training data from this host.');
  }
  const addresses = isIP(host) === 0 ? await resolve(host, network, deadline) : [host];
  // One address that is not public is enough: it is a trap, or a private name.
  if (addresses.length === 0 || !addresses.every((address) => network.allowed(address))) {
    throw new FetchRefusedError('The host is not in the public internet.');
  }
  return connect(url, addresses, limits, deadline);
}

/** A look-up cannot be called off: one that takes too long goes on without us. */
async function resolve(host: string, network: FetchNetwork, deadline: AbortSignal): Promise<string[]> {
  try {
    return await untilAborted(network.resolve(host, deadline), deadline);
  } catch (error) {
    if (deadline.aborted) throw explain(error, deadline);
    throw new FetchRefusedError('The host name cannot be resolved.');
  }
}

function connect(url: URL, addresses: string[], limits: FetchLimits, deadline: AbortSignal): Promise<IncomingMessage> {
  const options: RequestOptions = {
    method: 'GET',
    // No compression: what is stored is what was counted.
    headers: { accept: '*/*', 'accept-encoding': 'identity', 'user-agent': 'tandem' },
    lookup: pinned(addresses),
    agent: false,
    signal: deadline,
    timeout: limits.idleTimeoutMs,
  };
  return new Promise((resolve, reject) => {
    let response: IncomingMessage | undefined;
    const request = (url.protocol === 'https:' ? httpsRequest : httpRequest)(url, options, (begun) => {
      response = begun;
      resolve(begun);
    });
    request.on('timeout', () => request.destroy(new FetchRefusedError('The host does not answer in time.')));
    request.on('error', (error) => {
      // To Node a body without a length is whole whatever ended its connection.
      response?.destroy(error);
      reject(explain(error, deadline));
    });
    // An answer that asks for another protocol (101) ends the request without an error.
    request.on('close', () => reject(new FetchRefusedError('The host cannot be read.')));
    request.end();
  });
}

/** The connection asks for the name again; it gets what was checked. */
function pinned(addresses: string[]): LookupFunction {
  return (_host, options, callback) => {
    const found = addresses.map((address) => ({ address, family: isIP(address) }));
    const [first] = found;
    if (first === undefined) callback(new Error('no address'), '', 4);
    else if (options.all === true) callback(null, found);
    else callback(null, first.address, first.family);
  };
}

async function* read(
  response: IncomingMessage,
  limits: FetchLimits,
  deadline: AbortSignal,
): AsyncGenerator<Uint8Array> {
  try {
    if (response.statusCode !== 200) throw new FetchRefusedError(`The host answered ${response.statusCode}.`);
    const encoding = response.headers['content-encoding']?.trim().toLowerCase() ?? '';
    if (encoding !== '' && encoding !== 'identity') throw new FetchRefusedError('The host sends compressed data.');
    if (Number(response.headers['content-length'] ?? 0) > limits.maxBytes) throw tooLarge(limits);
    let bytes = 0;
    for await (const chunk of response) {
      bytes += (chunk as Uint8Array).length;
      if (bytes > limits.maxBytes) throw tooLarge(limits);
      yield chunk as Uint8Array;
    }
    if (!response.complete) throw new FetchRefusedError('The host closed the connection too early.');
  } catch (error) {
    throw explain(error, deadline);
  } finally {
    response.destroy();
  }
}

function tooLarge(limits: FetchLimits): FetchRefusedError {
  return new FetchRefusedError(`The data have more than ${limits.maxBytes} bytes.`);
}

/** Nothing of the network is told to the client. */
function explain(error: unknown, deadline: AbortSignal): Error {
  if (error instanceof FetchRefusedError) return error;
  if (deadline.aborted) return new FetchRefusedError('Reading the URL took too long.');
  const { code } = error as { code?: unknown };
  if (typeof code !== 'string') return error instanceof Error ? error : new Error(String(error));
  return new FetchRefusedError('The host cannot be read.');
}

function resolveAll(host: string): Promise<string[]> {
  return new Promise((resolve, reject) => {
    dnsLookup(host, { all: true }, (error, found) => {
      if (error) reject(error);
      else resolve(found.map(({ address }) => address));
    });
  });
}
