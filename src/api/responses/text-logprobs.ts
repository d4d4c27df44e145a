/**
 * Which of a reply's tokens a message's text is made from: those that begin within it. Thoughts come before it, marks of calls and stop
 * strings behind it.
 */
import type { TokenLogprob } from '../../control/sessions/session.ts';
import type { ChatTokenLogprob } from '../../schemas/chat-completion-response.ts';
import { chatLogprob } from './logprobs.ts';

export class TextLogprobs {
  #waiting: TokenLogprob[] = [];
  /** Characters of the text so far, and where the first waiting token begins. */
  #end = 0;
  #begin = 0;

  add(tokens: readonly TokenLogprob[]): void {
    for (const token of tokens) {
      if (token.thought !== true) this.#waiting.push(token);
      else this.#forget();
    }
  }

  /** What waits before a thought began its tag. */
  #forget(): void {
    this.#waiting = [];
    this.#begin = this.#end;
  }

  /** The text has grown. */
  take(chars: number): ChatTokenLogprob[] {
    this.#end += chars;
    return this.#shift(() => this.#begin < this.#end);
  }

  /** The text has ended with the reply: what ended it, and tokens without text, are of it too. */
  rest(): ChatTokenLogprob[] {
    return this.#shift(({ chars }) => this.#begin < this.#end || (chars === 0 && this.#begin === this.#end));
  }

  #shift(belongs: (token: TokenLogprob) => boolean): ChatTokenLogprob[] {
    let count = 0;
    for (const token of this.#waiting) {
      if (!belongs(token)) break;
      this.#begin += token.chars;
      count++;
    }
    return this.#waiting.splice(0, count).map((token) => chatLogprob(token, false));
  }
}
