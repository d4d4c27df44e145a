/** A constraint is compiled before its request is queued: what is wrong with it is refused while nothing has been spent. */
import { EngineUnavailableError, type EngineClient } from '../engine/client.ts';
import type { GrammarFailure } from '../engine/protocol.ts';
import { SessionError, type ContentConstraint, type SessionErrorCode } from './session.ts';

const CODES: Record<GrammarFailure['kind'], SessionErrorCode> = {
  refused: 'bad_request',
  malformed: 'bad_request',
  bound: 'bad_request',
  cancelled: 'unavailable',
  busy: 'queue_full',
  failed: 'engine_failed',
};

export async function compileConstraint(
  engine: EngineClient,
  tenant: string,
  { grammar, param, refusal }: ContentConstraint,
  signal: AbortSignal | undefined,
): Promise<void> {
  const { options } = grammar;
  if (options.space !== '') {
    // By itself: grammars without JSON would never read it, and others would not say what of them is wrong.
    const failure = await compile(engine, tenant, { source: { kind: 'json_object' }, options }, signal);
    if (failure) refuse(failure, `${param}.whitespace_pattern cannot be used:`, param);
  }
  const failure = await compile(engine, tenant, grammar, signal);
  if (failure) refuse(failure, refusal, param);
}

/** `refusal`: how to say that the client is wrong. */
function refuse(failure: GrammarFailure, refusal: string | undefined, param: string): never {
  const code = CODES[failure.kind];
  const opening = (code === 'bad_request' && refusal) || `${param} cannot be used:`;
  throw new SessionError(code, `${opening} ${failure.message}`, param);
}

async function compile(
  engine: EngineClient,
  tenant: string,
  grammar: ContentConstraint['grammar'],
  signal: AbortSignal | undefined,
): Promise<GrammarFailure | null> {
  try {
    return await engine.compileGrammar(tenant, grammar, signal);
  } catch (error) {
    if (error instanceof EngineUnavailableError) throw new SessionError('unavailable', error.message);
    throw error;
  }
}
