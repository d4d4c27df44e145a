/** truncation "auto": the oldest messages leave until the others fit. */
import type { RequestMessage } from '../../schemas/chat-completion.ts';

const INSTRUCTIONS: ReadonlySet<string> = new Set(['system', 'developer']);

/**
 * Instructions at the beginning stay, and no answer of a tool stays without its call. Where nothing fits, what is left at last is for others to
 * refuse. `fits` is asked some times only, however many messages there are.
 */
export async function fitConversation(
  messages: RequestMessage[],
  fits: (messages: RequestMessage[]) => Promise<boolean>,
): Promise<RequestMessage[]> {
  const first = messages.findIndex(({ role }) => !INSTRUCTIONS.has(role));
  if (first < 0 || (await fits(messages))) return messages;
  const from = (at: number) => [...messages.slice(0, first), ...messages.slice(at)];
  const beginnings = beginningsIn(messages, first);
  let low = 0;
  for (let high = beginnings.length - 1; low < high;) {
    const middle = Math.floor((low + high) / 2);
    if (await fits(from(beginnings[middle] ?? first))) high = middle;
    else low = middle + 1;
  }
  return from(beginnings[low] ?? first);
}

/** Where a shorter conversation may begin: with a user's message, or within what followed the last of these. */
function beginningsIn(messages: readonly RequestMessage[], first: number): number[] {
  const last = messages.findLastIndex(({ role }) => role === 'user');
  return [...messages.keys()].filter((at) => {
    const role = messages[at]?.role;
    return at > first && (role === 'user' || (at > last && role !== 'tool'));
  });
}
