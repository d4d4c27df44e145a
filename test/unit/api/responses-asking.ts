/** Asking /v1/responses of a server over sessions in memory, by one of two entities. */
import { expect } from 'vitest';
import type { Caller } from '../../../src/api/deps.ts';
import { KEY, type TestServer } from './fakes.ts';

export const PATH = '/v1/responses';

/** The key of another entity. */
export const OTHER_KEY = 'other';

export const twoEntities = {
  find: (key: string): Caller | null => {
    if (key !== KEY && key !== OTHER_KEY) return null;
    return { keyId: key, entity: key === KEY ? 'default' : 'other' };
  },
};

export interface Answer {
  id: string;
  status: string;
  store: boolean;
  output: { id: string; type: string; [key: string]: unknown }[];
  [key: string]: unknown;
}

export interface Event {
  type: string;
  sequence_number: number;
  [key: string]: unknown;
}

export class Asking {
  readonly #server: () => TestServer;

  constructor(server: () => TestServer) {
    this.#server = server;
  }

  async answer(fields: object): Promise<Answer> {
    const response = await this.#server().post(PATH, { input: 'Hi', ...fields });
    expect(response.status).toBe(200);
    return (await response.json()) as Answer;
  }

  /** What reached the sessions. */
  async input(fields: object) {
    await this.answer(fields);
    const input = this.#server().sessions.inputs.at(-1);
    if (input?.prompt.kind !== 'chat') throw new Error('no chat');
    return { ...input, prompt: input.prompt };
  }

  async messages(input: unknown, fields: object = {}) {
    return (await this.input({ input, ...fields })).prompt.messages;
  }

  /** The events of a stream, and the names of their `event:` lines. */
  async events(fields: object): Promise<{ names: (string | undefined)[]; events: Event[]; text: string }> {
    const text = await (await this.#server().post(PATH, { input: 'Hi', stream: true, ...fields })).text();
    const blocks = text.split('\n\n').filter((block) => block !== '');
    return {
      names: blocks.map((block) => /^event: (.*)$/m.exec(block)?.[1]),
      events: blocks.map((block) => JSON.parse(/^data: (.*)$/m.exec(block)?.[1] ?? '') as Event),
      text,
    };
  }
}
