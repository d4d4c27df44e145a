/** response_format and structured_outputs: what the reply's content must be. */
import { grammarRequest, GrammarRequestError } from '../../control/grammar/request.ts';
import type { ContentConstraint, ReplyOptions } from '../../control/sessions/session.ts';
import type { SamplingFields } from '../../schemas/sampling-fields.ts';
import { ApiError } from '../errors.ts';

/** Clients know this refusal by vLLM's words. */
const INVALID_TAG = 'Invalid response_format structural_tag specification.';
const NOT_BOTH = 'You can only either use constraints for structured outputs or tools, not both.';

/** null = anything. Calls that must come (`tools` required or named) leave no content that response_format could be about. */
export function toConstraint(body: SamplingFields, tools: ReplyOptions['tools']): ContentConstraint | null {
  const grammar = read(body.response_format, body.structured_outputs);
  if (grammar === null) return null;
  // An empty object asks for nothing.
  const isStructured = Object.keys(body.structured_outputs ?? {}).length > 0;
  const param = isStructured ? 'structured_outputs' : 'response_format';
  if (tools !== 'required' && typeof tools !== 'object') {
    const isTag = param === 'response_format' && grammar.source.kind === 'structural_tag';
    return { grammar, param, ...(isTag ? { refusal: INVALID_TAG } : {}) };
  }
  if (isStructured) throw new ApiError('invalid_parameter', NOT_BOTH, param);
  return null;
}

function read(format: unknown, outputs: unknown): ContentConstraint['grammar'] | null {
  try {
    return grammarRequest(format, outputs);
  } catch (error) {
    if (error instanceof GrammarRequestError) throw new ApiError('invalid_parameter', error.message, error.param);
    throw error;
  }
}
