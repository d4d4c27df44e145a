/** Log-probabilities in the shapes of the two completion APIs. */
import type { PromptTokenLogprob, TokenLogprob } from '../../control/sessions/session.ts';
import type { ChatLogprobs, ChatTopLogprob } from '../../schemas/chat-completion-response.ts';
import type { CompletionLogprobs } from '../../schemas/completion-response.ts';
import type { PromptLogprob } from '../../schemas/prompt-logprobs.ts';

/** Minus infinity has no JSON: this is the floor. */
const LOWEST_LOGPROB = -9999;

type Token = TokenLogprob['top'][number];

export function chatLogprobs(tokens: TokenLogprob[], tokensAsIds: boolean): ChatLogprobs {
  const entry = (token: Token): ChatTopLogprob => ({
    token: tokenText(token, tokensAsIds),
    logprob: floor(token.logprob),
    bytes: token.bytes,
  });
  return { content: tokens.map((token) => ({ ...entry(token), top_logprobs: token.top.map(entry) })) };
}

/** Characters as clients in most languages count them: code points, not the units of UTF-16. */
export function lengthOf(text: string): number {
  let length = text.length;
  for (let at = 0; at < text.length; at++) {
    if ((text.codePointAt(at) ?? 0) > 0xffff) {
      at++;
      length--;
    }
  }
  return length;
}

/** `offset`: where the first token's text begins, in characters. A token without a score (a prompt's first) comes as its text alone. */
export function completionLogprobs(
  tokens: (TokenLogprob | string)[],
  tokensAsIds: boolean,
  offset: number,
): CompletionLogprobs {
  const result: CompletionLogprobs = { text_offset: [], token_logprobs: [], tokens: [], top_logprobs: [] };
  let at = offset;
  for (const token of tokens) {
    result.text_offset.push(at);
    if (typeof token === 'string') {
      result.token_logprobs.push(null);
      result.tokens.push(token);
      result.top_logprobs.push(null);
      at += lengthOf(token);
      continue;
    }
    result.token_logprobs.push(floor(token.logprob));
    result.tokens.push(tokenText(token, tokensAsIds));
    result.top_logprobs.push(topByText(token, tokensAsIds));
    at += lengthOf(token.token);
  }
  return result;
}

/** The sampled token is always among them. Two ids with one text keep the likelier. */
function topByText(token: TokenLogprob, tokensAsIds: boolean): Record<string, number> {
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

function tokenText(token: Token, tokensAsIds: boolean): string {
  return tokensAsIds ? `token_id:${token.tokenId}` : token.token;
}

function floor(logprob: number): number {
  return Math.max(logprob, LOWEST_LOGPROB);
}
