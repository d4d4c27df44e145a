/** Log-probabilities in the shapes of the two completion APIs. */
import type { PromptTokenLogprob, TokenLogprob, TokenScore } from '../../control/sessions/session.ts';
import { LOGPROB_FLOOR } from '../../control/sessions/token-table.ts';
import type { ChatLogprobs, ChatTokenLogprob, ChatTopLogprob } from '../../schemas/chat-completion-response.ts';
import type { CompletionLogprobs } from '../../schemas/completion-response.ts';
import type { PromptLogprob } from '../../schemas/prompt-logprobs.ts';

type Token = TokenScore['top'][number];

export function chatLogprobs(tokens: TokenLogprob[], tokensAsIds: boolean): ChatLogprobs {
  return { content: tokens.map((token) => chatLogprob(token, tokensAsIds)) };
}

export function chatLogprob(token: TokenLogprob, tokensAsIds: boolean): ChatTokenLogprob {
  const entry = (shown: Token): ChatTopLogprob => ({
    token: tokenText(shown, tokensAsIds),
    logprob: floor(shown.logprob),
    bytes: shown.bytes,
  });
  return { ...entry(token), top_logprobs: token.top.map(entry) };
}

/** The first token of a prompt: nothing says how likely it is. */
export interface UnscoredToken {
  tokenId: number;
  token: string;
  chars: number;
  logprob: null;
}

/** A token of a text: of the prompt's or the reply's. */
export type TextToken = Omit<TokenLogprob, 'at'> | UnscoredToken;

/** What each list of CompletionLogprobs has of a token. `offset`: where the first token's text begins in the answer's, in characters. */
export function completionColumns(tokensAsIds: boolean, offset: number) {
  let next = offset;
  return {
    text_offset: ({ chars }: TextToken): number => (next += chars) - chars,
    token_logprobs: ({ logprob }: TextToken): number | null => (logprob === null ? null : floor(logprob)),
    tokens: (token: TextToken): string => tokenText(token, tokensAsIds),
    top_logprobs: (token: TextToken): Record<string, number> | null =>
      token.logprob === null ? null : topByText(token, tokensAsIds),
  };
}

export function completionLogprobs(tokens: TextToken[], tokensAsIds: boolean, offset: number): CompletionLogprobs {
  const columns = completionColumns(tokensAsIds, offset);
  return {
    text_offset: tokens.map(columns.text_offset),
    token_logprobs: tokens.map(columns.token_logprobs),
    tokens: tokens.map(columns.tokens),
    top_logprobs: tokens.map(columns.top_logprobs),
  };
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
  return tokens?.map((token) => promptLogprob(token, count)) ?? null;
}

export function promptLogprob(token: PromptTokenLogprob | null, count: number): PromptLogprob {
  if (token === null) return null;
  const entry = ({ token: text, logprob }: Token, rank: number) => ({ logprob, rank, decoded_token: text });
  const alternatives = token.top.slice(0, count).map((top, at) => [top.tokenId, entry(top, at + 1)] as const);
  return Object.fromEntries([...alternatives, [token.tokenId, entry(token, token.rank)]]);
}

function tokenText(token: Pick<Token, 'token' | 'tokenId'>, tokensAsIds: boolean): string {
  return tokensAsIds ? `token_id:${token.tokenId}` : token.token;
}

function floor(logprob: number): number {
  return Math.max(logprob, LOGPROB_FLOOR);
}
