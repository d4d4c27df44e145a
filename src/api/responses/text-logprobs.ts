/** Which of a reply's tokens its messages are made from: those that begin within their texts. Thoughts, calls and marks lie elsewhere. */
import type { TokenLogprob } from '../../control/sessions/session.ts';
import type { ChatTokenLogprob } from '../../schemas/chat-completion-response.ts';
import { chatLogprob } from './logprobs.ts';

export class TextLogprobs {
  #waiting: TokenLogprob[] = [];
  /** Of those that wait, alternatives included. */
  #entries = 0;
  /** Where the text so far ends in the output. */
  #end = 0;

  add(tokens: readonly TokenLogprob[]): void {
    for (const token of tokens) {
      this.#waiting.push(token);
      this.#entries += entriesOf(token);
    }
  }

  /** The text has grown by what begins at `at` of the output. */
  take(text: string, at = this.#end): ChatTokenLogprob[] {
    this.#end = at + text.length;
    this.#shift((token) => token.at < at);
    return shown(this.#shift((token) => token.at < this.#end));
  }

  /** The reply has ended, and its text where the output does: what ended it is of it too. `outputEnd`: absent: where the text does. */
  rest(outputEnd = this.#end): ChatTokenLogprob[] {
    return outputEnd === this.#end ? shown(this.#shift(() => true)) : [];
  }

  /** What waits belongs to no text, but for what a parser holds back: the oldest beyond `most` entries go. */
  forget(most: number): void {
    this.#shift(() => this.#entries > most);
  }

  #shift(wanted: (token: TokenLogprob) => boolean): TokenLogprob[] {
    let count = 0;
    for (const token of this.#waiting) {
      if (!wanted(token)) break;
      this.#entries -= entriesOf(token);
      count++;
    }
    return this.#waiting.splice(0, count);
  }
}

function entriesOf({ top }: TokenLogprob): number {
  return 1 + top.length;
}

function shown(tokens: readonly TokenLogprob[]): ChatTokenLogprob[] {
  return tokens.map((token) => chatLogprob(token, false));
}
