/** Log-probabilities in the shapes of the two completion APIs. */
import type { PromptTokenLogprob, TokenLogprob, TokenScore } from '../../control/sessions/session.ts';
import type { ChatLogprobs, ChatTopLogprob } from '../../schemas/chat-completion-response.ts';
import type { CompletionLogprobs } from '../../schemas/completion-response.ts';
import type { PromptLogprob } from '../../schemas/prompt-logprobs.ts';

/** Minus infinity has no JSON: this is the floor. */
const LOWEST_LOGPROB = -9999;

type Token = TokenScore['top'][number];

export function chatLogprobs(tokens: TokenLogprob[], tokensAsIds: boolean): ChatLogprobs {
  const entry = (token: Token): ChatTopLogprob => ({
    token: tokenText(token, tokensAsIds),
    logprob: floor(token.logprob),
    bytes: token.bytes,
  });
  return { content: tokens.map((token) => ({ ...entry(token), top_logprobs: token.top.map(entry) })) };
}

/** The first token of a prompt: nothing says how likely it is. */
export interface UnscoredToken {
  tokenId: number;
  token: string;
  chars: number;
  logprob: null;
}

/** `offset`: where the first token's text begins in the answer's, in characters. */
export function completionLogprobs(
  tokens: (TokenLogprob | UnscoredToken)[],
  tokensAsIds: boolean,
  offset: number,
): CompletionLogprobs {
  const result: CompletionLogprobs = { text_offset: [], token_logprobs: [], tokens: [], top_logprobs: [] };
  let at = offset;
  for (const token of tokens) {
    const scored = token.logprob !== null;
    result.text_offset.push(at);
    result.token_logprobs.push(scored ? floor(token.logprob) : null);
    result.tokens.push(tokenText(token, tokensAsIds));
    result.top_logprobs.push(scored ? topByText(token, tokensAsIds) : null);
    at += token.chars;
  }
  return result;
}

/** The sampled token is always among them. Two ids with one text keep the likelier. */
function topByText(token: TokenScore, tokensAsIds: boolean): Record<string, number> {
  const entries = new Map<string, number>();
  for (const candidate of [...token.top, token]) {
    const text = tokenText(candidate, tokensAsIds);
    if (!entries.has(text)) entries.set(text, floor(candidate.logprob));
  }
  return Object.fromEntries(entries);
}

/** `count`: alternatives per token. */
export function promptLogprobs(
  tokens: (PromptTokenLogprob | null)[] | null,
  count: number = Infinity,
): PromptLogprob[] | null {
  if (tokens === null) return null;
  return tokens.map((token) => {
    if (token === null) return null;
    const entry = ({ token: text, logprob }: Token, rank: number) => ({ logprob, rank, decoded_token: text });
    const alternatives = token.top.slice(0, count).map((top, at) => [top.tokenId, entry(top, at + 1)] as const);
    return Object.fromEntries([...alternatives, [token.tokenId, entry(token, token.rank)]]);
  });
}

function tokenText(token: Pick<Token, 'token' | 'tokenId'>, tokensAsIds: boolean): string {
  return tokensAsIds ? `token_id:${token.tokenId}` : token.token;
}

function floor(logprob: number): number {
  return Math.max(logprob, LOWEST_LOGPROB);
}
