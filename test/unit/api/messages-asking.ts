/** Asking /v1/messages of a server over sessions in memory. */
import { expect } from 'vitest';
import type {
  ContentBlock,
  MessageEvent,
  MessageObject,
  MessagesErrorBody,
} from '../../../src/schemas/message-object.ts';
import type { TestServer } from './fakes.ts';

export const PATH = '/v1/messages';
export const COUNT = '/v1/messages/count_tokens';

export type Fields = Record<string, unknown>;

/** "Hi", and no more than ten tokens. */
export const HI: Fields = { max_tokens: 10, messages: [{ role: 'user', content: 'Hi' }] };

export class AskingMessages {
  readonly #server: () => TestServer;

  constructor(server: () => TestServer) {
    this.#server = server;
  }

  async answer(fields: Fields): Promise<MessageObject> {
    const response = await this.#server().post(PATH, { ...HI, ...fields });
    expect(response.status, await response.clone().text()).toBe(200);
    return (await response.json()) as MessageObject;
  }

  /** What reached the sessions. */
  async input(fields: Fields) {
    await this.answer(fields);
    const input = this.#server().sessions.inputs.at(-1);
    if (input?.prompt.kind !== 'chat') throw new Error('no chat');
    return { ...input, prompt: input.prompt };
  }

  async messages(...messages: Fields[]) {
    return (await this.input({ messages })).prompt.messages;
  }

  /** Its status, and what it says. */
  async refusal(fields: Fields, path = PATH): Promise<{ status: number; type: string; message: string }> {
    const response = await this.#server().post(path, { ...HI, ...fields });
    const { type, error, request_id } = (await response.json()) as MessagesErrorBody;
    expect(type).toBe('error');
    expect(request_id).toBe(response.headers.get('request-id'));
    return { status: response.status, ...error };
  }

  /** The events of a stream; their `event:` lines are their types. */
  async events(fields: Fields): Promise<(MessageEvent | MessagesErrorBody)[]> {
    const text = await (await this.#server().post(PATH, { ...HI, stream: true, ...fields })).text();
    const blocks = text.split('\n\n').filter((block) => block !== '');
    const events = blocks.map((block) => JSON.parse(/^data: (.*)$/m.exec(block)?.[1] ?? '') as MessageEvent);
    expect(blocks.map((block) => /^event: (.*)$/m.exec(block)?.[1])).toEqual(events.map(({ type }) => type));
    return events;
  }
}

/** Ids of calls are random. */
export function withoutIds(content: readonly ContentBlock[]): object[] {
  return content.map((block) => ({ ...block, id: '' }));
}
