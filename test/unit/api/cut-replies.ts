/** Replies of a model that thinks and calls tools, cut into deltas as an engine and a reader may cut them. */
import { createSessions } from '../../../src/control/sessions/create-sessions.ts';
import type { ChoiceDelta, Sessions } from '../../../src/control/sessions/session.ts';
import { generationInput, RENDER, REPLY, SAMPLING } from '../../fixtures/generation-input.ts';
import { byteTokenizer, writeModel } from '../models/model-directory.ts';
import { FakeEngine } from '../sessions/fake-engine.ts';

const TEMPLATE = '{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}assistant: ';
const TOOLS = [{ type: 'function', function: { name: 'f', parameters: { type: 'object' } } }];

/** As the model writes it. */
export const call = (x: number) => `<tool_call>\n{"name": "f", "arguments": {"x": ${x}}}\n</tool_call>`;

export class CutReplies {
  readonly #engine: FakeEngine;
  readonly #sessions: Sessions;

  private constructor(engine: FakeEngine, sessions: Sessions) {
    this.#engine = engine;
    this.#sessions = sessions;
  }

  static async start(format: 'hermes' | 'harmony' = 'hermes'): Promise<CutReplies> {
    const engine = new FakeEngine();
    const sessions = await createSessions({
      modelPath: writeModel({ tokenizerConfig: { ...byteTokenizer().config, chat_template: TEMPLATE } }),
      engine,
      maxModelLen: 4096,
      workers: 1,
      renderTimeoutMs: 10_000,
      toolParser: format,
      reasoningParser: format === 'hermes' ? 'qwen3' : format,
    });
    return new CutReplies(engine, sessions);
  }

  close(): Promise<void> {
    return this.#sessions.close();
  }

  /** With log-probabilities. The engine gives `step` tokens at once; a late reader gets all of them in one delta. */
  async deltasOf(text: string, step: number, late = false, stop: string[] = []): Promise<ChoiceDelta[]> {
    const generation = await this.#sessions.start(
      generationInput({
        prompt: { kind: 'chat', messages: [{ role: 'user', content: 'Hi' }], render: RENDER },
        reply: { ...REPLY, tools: 'auto', toolDefinitions: TOOLS },
        sampling: { ...SAMPLING, maxTokens: 500, topLogprobs: 0, stop },
      }),
    );
    const deltas: ChoiceDelta[] = [];
    const read = async () => {
      for await (const each of generation.deltas) deltas.push(structuredClone(each));
    };
    const reading = late ? null : read();
    const ids = [...new TextEncoder().encode(text)];
    for (let from = 0; from < ids.length; from += step) {
      const some = ids.slice(from, from + step);
      this.#engine.emit(0, some, null, { logprobs: some.map(() => -1), ranks: some.map(() => 1) });
      await Promise.resolve();
    }
    this.#engine.emit(0, [257], 'stop', { logprobs: [-1], ranks: [1] });
    await (reading ?? read());
    return deltas;
  }
}
