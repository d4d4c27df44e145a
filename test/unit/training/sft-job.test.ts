/** SFT jobs from their lines to a checkpoint, over stores in memory. */
import { afterEach, describe, expect, it, vi } from 'vitest';
import type { OpenChat } from '../../../src/control/sessions/open-chat.ts';
import { SessionError } from '../../../src/control/sessions/session.ts';
import type { SftJob } from '../../../src/control/training/ports.ts';
import { filesOf, MemoryPorts, run, story, types } from './memory-ports.ts';

const sft = (config: SftJob['config'] = null): SftJob => ({ kind: 'sft', id: 'job', modelId: 'm', config });

const opened: MemoryPorts[] = [];
afterEach(() => {
  for (const ports of opened.splice(0)) ports.remove();
});

function memory(data: string): MemoryPorts {
  const ports = Object.assign(new MemoryPorts(), { data });
  opened.push(ports);
  return ports;
}

describe('an SFT job', () => {
  const line = (question: string, answer: string) =>
    JSON.stringify({
      messages: [
        { role: 'user', content: question },
        { role: 'assistant', content: answer },
      ],
    });
  const LINES = [line('a', 'yes'), line('b', 'no'), line('c', 'maybe')];

  it('makes one pass in batches, in file order', async () => {
    const ports = memory(`${LINES.join('\n')}\n`);
    expect(await run(ports, sft({ batch_size: 2, learning_rate: [0.02, 0.01] }))).toBe('ended');
    expect(types(ports)).toEqual(['training_started', 'gradient_step', 'gradient_step', 'training_ended']);
    expect(ports.log[0]?.data['num_sequences']).toBe(2);
    expect(ports.log[1]?.data).toMatchObject({ gradient_step: 1, learning_rate: 0.02, num_trajectories: 2 });
    expect(ports.log[2]?.data).toMatchObject({ gradient_step: 2, learning_rate: 0.01, num_trajectories: 1 });
    expect(ports.rows.size).toBe(1);
  });

  it('parses a line when it is trained on, and only then, on this thread that serves', async () => {
    const ports = memory(LINES.join('\n'));
    const parse = vi.spyOn(JSON, 'parse');
    const parsed = () => parse.mock.calls.filter(([text]) => LINES.includes(text)).length;
    try {
      ports.beforeWrite = () => {
        if (ports.log.length === 0) expect(parsed()).toBe(0);
        if (ports.log.length === 3) throw new Error('killed');
      };
      await expect(run(ports, sft({ batch_size: 1 }))).rejects.toThrow('killed');
      expect(parsed()).toBe(2);
      // The second step is lost, the first one is saved.
      ports.beforeWrite = () => undefined;
      expect(await run(ports, sft({ batch_size: 1 }))).toBe('ended');
      expect(parsed()).toBe(4);
    } finally {
      parse.mockRestore();
    }
  });

  it('learns what it is shown, and tells its speed in seconds', async () => {
    const ports = memory(
      Array<string>(30)
        .fill(LINES[0] ?? '')
        .join('\n'),
    );
    const started = performance.now();
    await run(ports, sft({ batch_size: 1, learning_rate: 0.05 }));
    const seconds = (performance.now() - started) / 1000;
    const steps = ports.log.filter(({ type }) => type === 'gradient_step').map(({ data }) => data);
    const told = (name: string) => steps.map((data) => Number(data[name]));
    expect(told('loss').at(-1)).toBeLessThan((told('loss')[0] ?? 0) / 2);
    // Of the clock: the steps took no longer than all did, and those that have still to come take as long.
    const took = told('num_tokens').map((tokens, i) => tokens / (told('tokens_per_second')[i] ?? 0));
    expect(took.reduce((sum, each) => sum + each, 0)).toBeLessThanOrEqual(seconds);
    expect(told('eta_seconds').at(-1)).toBe(0);
    expect((told('eta_seconds')[0] ?? Infinity) / 29).toBeLessThanOrEqual(seconds);
  });

  it('goes on with the batch where it was killed', async () => {
    const data = LINES.join('\n');
    const config = { batch_size: 1, metric_logging: { enabled: true, target_training_step: 4 } };
    const whole = memory(data);
    await run(whole, sft(config));
    expect(whole.rows.get('job/step-2')).toMatchObject({ step: 4, 'sft/gradient_step': 2 });
    for (let kill = 0; kill < whole.writes; kill++) {
      const ports = memory(data);
      ports.beforeWrite = (write) => {
        if (write >= kill) throw new Error('killed');
      };
      await expect(run(ports, sft(config))).rejects.toThrow('killed');
      ports.beforeWrite = () => undefined;
      expect(await run(ports, sft(config))).toBe('ended');
      expect(story(ports)).toEqual(story(whole));
      expect(filesOf(ports)).toEqual(filesOf(whole));
      ports.remove();
    }
  });

  it('leaves its data closed, also where it stops in the middle', async () => {
    for (const writes of [Infinity, 3]) {
      const ports = memory(LINES.join('\n'));
      let opens = 0;
      let closes = 0;
      ports.inputs.trainingData = async function* () {
        opens++;
        try {
          for (const text of LINES) yield Buffer.from(`${text}\n`);
        } finally {
          closes++;
        }
      };
      ports.beforeWrite = () => {
        if (ports.log.length === writes) throw new Error('killed');
      };
      const ended = run(ports, sft({ batch_size: 1 }));
      await (writes === 3 ? expect(ended).rejects.toThrow('killed') : expect(ended).resolves.toBe('ended'));
      // Once to count, once to train.
      expect([opens, closes]).toEqual([2, 2]);
    }
  });

  it('fails with the number of a line that the template refuses, and with its words', async () => {
    const ports = memory(['', LINES[0], '', LINES[1]].join('\n'));
    const { encodeChat } = ports.chat;
    const refusing = Object.assign({}, ports.chat, {
      encodeChat: (chat: OpenChat) =>
        chat.messages[0]?.content === 'b'
          ? Promise.reject(new SessionError('bad_request', 'Roles must alternate', 'messages'))
          : encodeChat(chat),
    });
    expect(await run(Object.assign(ports, { chat: refusing }), sft({ batch_size: 1 }))).toBe('failed');
    expect(types(ports)).toEqual(['training_started', 'gradient_step', 'training_failed']);
    const message = 'Line 4 of the training data cannot be rendered: Roles must alternate';
    expect(ports.log.at(-1)?.data['error_message']).toBe(message);
  });

  it('drops what is too long; an empty batch changes nothing', async () => {
    const ports = memory([line('x '.repeat(2000), 'yes'), LINES[1]].join('\n'));
    expect(await run(ports, sft({ batch_size: 1, learning_rate: 0.05 }))).toBe('ended');
    expect(ports.log[1]?.data).toMatchObject({ num_dropped_trajectories: 1, grad_norm: 0, loss: 0 });
    expect(ports.log[2]?.data['num_dropped_trajectories']).toBe(0);
  });

  it('refuses a list of learning rates that is too short', async () => {
    const ports = memory(LINES.slice(0, 3).join('\n'));
    expect(await run(ports, sft({ learning_rate: [0.1] }))).toBe('failed');
    expect(ports.log.at(-1)?.data['error_message']).toContain('config.learning_rate: has 1 values for 2 batches.');
  });
});
