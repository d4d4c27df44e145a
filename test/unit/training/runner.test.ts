import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { RowRefusedError } from '../../../src/control/engine/training.ts';
import type { TrainingEventType } from '../../../src/control/training/ports.ts';
import { CANCELLED, type RlJob, type SftJob, type TrainingJob } from '../../../src/control/training/ports.ts';
import { identityAdapter } from '../../../src/control/training/adapter-init.ts';
import {
  readAdapter,
  readCheckpoint,
  writeIdentityCheckpoint,
} from '../../../src/control/training/checkpoint-files.ts';
import { JobRunner } from '../../../src/control/training/runner.ts';
import type { HistoryElement, TrajectoryGroup } from '../../../src/control/training/trajectories.ts';
import { starterChat } from './chat-encoder.ts';
import { FAKE_SPEC } from './fake-engine.ts';
import { filesOf, MemoryPorts, run, story, types } from './memory-ports.ts';

const chat = await starterChat();
const user = (content: string): HistoryElement => ({ role: 'user', content });

function choice(text: string): HistoryElement {
  const content = chat.ids(text).map((id) => ({ token: `token_id:${id}`, logprob: -1.5 }));
  return { finish_reason: 'stop', index: 0, message: { role: 'assistant', content: text }, logprobs: { content } };
}

function group(question: string, rewards: number[], replies = ['yes', 'no', 'maybe', 'red']): TrajectoryGroup {
  return {
    trajectories: rewards.map((reward, i) => ({
      messages_and_choices: [user(question), choice(`${replies[i % replies.length]}<|im_end|>`)],
      reward,
      initial_policy_version: 0,
    })),
  };
}

/** Three packed rows of one group each. */
const GROUPS = [group('Which one?', [1, 0, 0.6]), group('And now?', [0, 1]), group('Say it.', [0.2, 0.5, 0.9, 0.1])];
const THREE_ROWS = { packed_sequence_length: 32, logprob_calculation_chunk_size: 32, learning_rate: 0.01 };

const rl = (config: RlJob['config'] = THREE_ROWS, id = 'job'): RlJob => ({ kind: 'rl', id, modelId: 'm', config });
const sft = (config: SftJob['config'] = null, id = 'job'): SftJob => ({ kind: 'sft', id, modelId: 'm', config });

const opened: MemoryPorts[] = [];
afterEach(() => {
  for (const ports of opened.splice(0)) ports.remove();
});

function memory(over: Partial<MemoryPorts> = {}): MemoryPorts {
  const ports = Object.assign(new MemoryPorts(), { groups: GROUPS }, over);
  opened.push(ports);
  return ports;
}

describe('an RL job', () => {
  it('takes one step per packed row, and ends with a checkpoint that serves', async () => {
    const ports = memory();
    expect(await run(ports, rl())).toBe('ended');
    expect(types(ports)).toEqual(['training_started', ...Array<string>(3).fill('gradient_step'), 'training_ended']);
    expect(ports.log[0]?.data['num_sequences']).toBe(3);
    expect(ports.made.map(({ step }) => step)).toEqual([1]);
    expect(ports.engine.loaded.map(({ version }) => version)).toEqual([ports.made[0]?.adapter.version]);
    expect(ports.engine.open).toBe(0);
    expect(ports.told.map(({ step, steps }) => [step, steps])).toEqual([
      [1, 3],
      [2, 3],
      [3, 3],
    ]);
    for (const { type, data } of ports.log) {
      expect(Object.values(data).every((value) => typeof value === 'number' && Number.isFinite(value))).toBe(true);
      if (type !== 'gradient_step') continue;
      expect(data).toMatchObject({ learning_rate: 0.01, num_groups_submitted: 3, num_trajectories: 9, policy_lag: 0 });
      expect(data['loss']).toBe(data['policy_loss']);
      for (const name of ['entropy', 'probs_corr', 'grad_norm', 'num_tokens', 'num_trainable_tokens', 'reward']) {
        expect(data).toHaveProperty(name);
      }
    }
    expect(ports.rows.get('job/end')).toMatchObject({
      step: 1,
      'train/num_gradient_steps': 3,
      'train/num_trajectories': 9,
    });
  });

  it('raises what was rewarded', async () => {
    const ports = memory({ groups: [group('Which one?', [1, 0, 0, 0])] });
    const config = { learning_rate: 0.05 };
    for (let job = 0; job < 20; job++) expect(await run(ports, rl(config, `job${job}`))).toBe('ended');
    expect(ports.made.at(-1)?.step).toBe(20);
    const trained = await readAdapter(ports.made.at(-1)?.adapter.directory ?? '');
    expect(trained.factors.some(({ b }) => b.some((value) => value !== 0))).toBe(true);
  });

  it('follows the configuration', async () => {
    const accumulated = memory();
    await run(accumulated, rl({ ...THREE_ROWS, grad_accumulation_sequences: 2 }));
    expect(accumulated.log[0]?.data['num_sequences']).toBe(2);
    const scaled = memory();
    await run(scaled, rl({ ...THREE_ROWS, num_trajectories_learning_rate_multiplier_power: 1 }));
    const rates = scaled.log.filter(({ type }) => type === 'gradient_step').map(({ data }) => data['learning_rate']);
    expect([...rates].sort()).toEqual([0.02, 0.03, 0.04]);
    const penalised = memory();
    await run(penalised, rl({ ...THREE_ROWS, kl_penalty_coef: 0.1 }));
    expect(penalised.log[1]?.data['kl_policy_ref']).toBe(0);
    expect(penalised.log[3]?.data['kl_policy_ref']).not.toBe(0);
  });

  it('hands the optimizer the settings of its kind', async () => {
    const common = { beta1: 0.9, beta2: 0.99, eps: 1e-8 };
    const ports = memory({ groups: [group('a', [0, 1])] });
    await run(ports, rl(null, 'one'));
    expect(ports.engine.optimized).toEqual([{ ...common, weightDecay: 0.1, maxGradNorm: 0.1, learningRate: 5e-6 }]);
    ports.data = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}';
    await run(ports, sft(null, 'two'));
    expect(ports.engine.optimized[1]).toEqual({ ...common, weightDecay: 0, maxGradNorm: 1, learningRate: 5e-5 });
  });

  it('computes old log-probabilities anew where asked', async () => {
    const ports = memory();
    await run(ports, rl({ ...THREE_ROWS, precalculate_logprobs: true }));
    expect(ports.log[1]?.data['probs_corr']).toBeCloseTo(1, 9);
    const plain = memory();
    await run(plain, rl());
    expect(plain.log[1]?.data['probs_corr']).not.toBeCloseTo(1, 3);
  });

  it('advances the step where nothing is to be trained', async () => {
    const ports = memory({ groups: [group('a', [1, 1]), group('b', [0.5]), { trajectories: [] }] });
    expect(await run(ports, rl())).toBe('ended');
    expect(types(ports)).toEqual(['training_started', 'training_ended']);
    expect(ports.log[0]?.data).toMatchObject({ num_sequences: 0, num_groups_submitted: 3, num_groups_trainable: 0 });
    expect(ports.made).toHaveLength(1);
    expect(ports.engine.calls).toBe(0);
  });

  it('drops what is too long, and says so', async () => {
    const long = group(`${'long '.repeat(80)}?`, [1, 0]);
    const ports = memory({ groups: [long, group('b', [0, 1])] });
    expect(await run(ports, rl())).toBe('ended');
    expect(ports.log[0]?.data).toMatchObject({
      num_sequences: 1,
      num_dropped_trajectories: 2,
      num_groups_trainable: 1,
    });
  });

  it.each<[string, TrajectoryGroup[], RlJob['config'], string]>([
    [
      'no log-probabilities',
      [{ trajectories: [{ messages_and_choices: [user('a')], reward: 1 }, { reward: 0 }] }],
      null,
      'There are no assistant logprobs to train on.',
    ],
    [
      'a KL reference that is not there',
      GROUPS,
      { kl_penalty_coef: 1, kl_penalty_reference_step: 7 },
      'no checkpoint of step 7',
    ],
    [
      'a learning rate that the multiplier makes too large',
      GROUPS,
      { learning_rate: 1, num_trajectories_learning_rate_multiplier_power: 4 },
      'num_trajectories_learning_rate_multiplier_power: makes a learning rate of ',
    ],
    [
      'a chat that the template refuses',
      [
        {
          trajectories: [1, 0].map((reward) => ({
            messages_and_choices: [{ role: 'user', content: [{ type: 'image_url' }] }, choice('a')],
            reward,
          })),
        },
      ],
      null,
      'trajectory_groups.0.trajectories.0.messages_and_choices: Unsupported chat content part',
    ],
  ])('fails with a reason: %s', async (_name, groups, config, message) => {
    const ports = memory({ groups });
    expect(await run(ports, rl(config))).toBe('failed');
    expect(ports.log.at(-1)).toMatchObject({ key: 'end', type: 'training_failed' });
    expect(ports.log.at(-1)?.data['error_message']).toContain(message);
    expect(ports.made).toEqual([]);
  });

  it('keeps its own errors to itself', async () => {
    const ports = memory();
    ports.engine.beforeCall = () => {
      throw new Error('/secret/path');
    };
    expect(await run(ports, rl())).toBe('failed');
    expect(ports.log.at(-1)?.data['error_message']).toBe(
      'The training job failed because of an internal error of the server.',
    );
    expect(String(ports.faults[0])).toContain('/secret/path');
    const refusing = memory();
    refusing.engine.openError = new Error('The adapter does not fit the model.');
    expect(await run(refusing, rl())).toBe('failed');
    expect(refusing.log.at(-1)?.data['error_message']).toBe('The adapter does not fit the model.');
  });

  it('says what a row needs that is refused, and what can be done', async () => {
    const refusing = (): MemoryPorts => {
      const ports = memory({
        data: '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
      });
      ports.engine.beforeCall = () => {
        throw new RowRefusedError('a packed row of 2048 tokens needs 9 MiB, and training may take 8 MiB');
      };
      return ports;
    };
    for (const [job, advice] of [
      [rl(), 'Shorter trajectories'],
      [sft(), 'lines'],
    ] as const) {
      const ports = refusing();
      expect(await run(ports, job)).toBe('failed');
      const message = String(ports.log.at(-1)?.data['error_message']);
      expect(message).toContain('needs 9 MiB, and training may take 8 MiB');
      expect(message).toContain(advice);
      expect(ports.faults).toEqual([]);
    }
  });

  it('skips a poisoned step and reports it', async () => {
    const ports = memory({ groups: [GROUPS[0] ?? { trajectories: [] }] });
    ports.engine.poison = true;
    expect(await run(ports, rl())).toBe('ended');
    expect(ports.log[1]?.data).toMatchObject({ skipped_step: 1 });
    expect(ports.log[1]?.data).not.toHaveProperty('grad_norm');
    const clean = memory({ groups: [] });
    await run(clean, rl());
    expect(filesOf(ports)['adapter_model.safetensors']).toBe(filesOf(clean)['adapter_model.safetensors']);
  });

  it('keeps the optimizer across jobs, and starts it anew for another kind', async () => {
    const ports = memory({
      data: '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
    });
    await run(ports, rl(THREE_ROWS, 'one'));
    await run(ports, rl(THREE_ROWS, 'two'));
    const directory = () => ports.made.at(-1)?.adapter.directory ?? '';
    expect((await readCheckpoint(directory(), 'rl')).optimizer?.steps).toBe(6);
    expect((await readCheckpoint(directory(), 'sft')).optimizer).toBeNull();
    await run(ports, sft(null, 'three'));
    expect((await readCheckpoint(directory(), 'sft')).optimizer?.steps).toBe(1);
  });
});

describe('an interrupted job', () => {
  const config = { ...THREE_ROWS, precalculate_logprobs: true, kl_penalty_coef: 0.1 };

  async function unbroken(): Promise<MemoryPorts> {
    const ports = memory();
    await run(ports, rl(config));
    return ports;
  }

  const hiccup = (code?: string) => Object.assign(new Error('the disk hiccups'), { code });

  it('ends the same wherever the process is killed', async () => {
    const whole = await unbroken();
    for (let kill = 0; kill < whole.writes; kill++) {
      const ports = memory();
      const killed = new Error('killed');
      ports.beforeWrite = (write) => {
        // Nothing is written any more once the process is gone.
        if (write >= kill) throw killed;
      };
      await expect(run(ports, rl(config))).rejects.toBe(killed);
      ports.beforeWrite = () => undefined;
      expect(await run(ports, rl(config))).toBe('ended');
      expect([story(ports), filesOf(ports)]).toEqual([story(whole), filesOf(whole)]);
      expect(ports.made).toHaveLength(1);
      ports.remove();
    }
  });

  it('has not failed once its step is there, whichever single write fails', async () => {
    const { writes } = await unbroken();
    let made = 0;
    for (let fault = 0; fault < writes; fault++) {
      const ports = memory();
      ports.beforeWrite = (write) => {
        if (write === fault) throw hiccup();
      };
      const rest = await run(ports, rl(config)).catch(() => 'rejected');
      if (ports.made.length === 0) {
        expect([rest, types(ports).at(-1)]).toEqual(['failed', 'training_failed']);
      } else {
        made++;
        expect(types(ports)).not.toContain('training_failed');
        expect(await run(ports, rl(config))).toBe('ended');
        expect(types(ports).filter((type) => type === 'training_ended')).toHaveLength(1);
      }
      ports.remove();
    }
    expect(made).toBeGreaterThan(0);
  });

  it('is no failure where what may pass fails a write: run again, it ends the same', async () => {
    const whole = await unbroken();
    for (let fault = 0; fault < whole.writes; fault++) {
      const ports = memory();
      ports.beforeWrite = (write) => {
        if (write === fault) throw hiccup(['EIO', 'ENOSPC', 'EMFILE'][fault % 3]);
      };
      await expect(run(ports, rl(config))).rejects.toThrow(/disk|files/);
      expect(await run(ports, rl(config))).toBe('ended');
      expect([story(ports), filesOf(ports)]).toEqual([story(whole), filesOf(whole)]);
      ports.remove();
    }
  });

  it('counts no start as progress where no step is taken', async () => {
    const ports = memory();
    const save = vi.spyOn(ports.snapshots, 'save');
    ports.engine.beforeCall = () => Promise.reject(hiccup('EMFILE'));
    for (let start = 0; start < 3; start++) {
      await expect(run(ports, rl())).rejects.toThrow('The server could not read or write its files.');
    }
    expect(save).toHaveBeenCalledTimes(1);
  });

  it('ends the same wherever the engine is lost', async () => {
    const whole = await unbroken();
    for (let call = 0; call < whole.engine.calls; call++) {
      const ports = memory();
      ports.engine.dieAt = call;
      expect(await run(ports, rl(config))).toBe('ended');
      expect([story(ports), filesOf(ports)]).toEqual([story(whole), filesOf(whole)]);
      expect(ports.engine.open).toBe(0);
      ports.remove();
    }
  });

  it('ends with its last step, also where snapshots are too dear for every one', async () => {
    const whole = await unbroken();
    const ports = memory();
    const { save } = ports.snapshots;
    ports.snapshots.save = async (jobId, snapshot) => {
      await save(jobId, snapshot);
      await new Promise((resolve) => setTimeout(resolve, 30));
      return 2 ** 30;
    };
    expect(await run(ports, rl(config))).toBe('ended');
    expect(filesOf(ports)).toEqual(filesOf(whole));
  });

  it('goes on as often as the engine is lost, as long as a step lies between', async () => {
    const groups = Array.from({ length: 8 }, (_, i) => group(`Which ${i}?`, [1, 0]));
    const [whole, ports] = [memory({ groups }), memory({ groups })];
    await run(whole, rl());
    let losses = 0;
    const { save } = ports.snapshots;
    ports.snapshots.save = (jobId, snapshot) => {
      const steps = types(ports).filter((type) => type === 'gradient_step').length;
      if (steps > losses) {
        losses++;
        ports.engine.dieAt = ports.engine.calls;
      }
      return save(jobId, snapshot);
    };
    expect(await run(ports, rl())).toBe('ended');
    expect(losses).toBe(8);
    expect(filesOf(ports)).toEqual(filesOf(whole));
  });

  it('keeps the rows that it began with, whatever a row may take when it goes on', async () => {
    const tight = { maxTokens: 40, bytes: 2 ** 40, tokenBytes: 1, pageBytes: 1 };
    const whole = memory();
    whole.engine.room = tight;
    expect(await run(whole, rl({ learning_rate: 0.01 }))).toBe('ended');
    expect(whole.log[0]?.data['num_sequences']).toBe(3);
    const ports = memory();
    ports.engine.room = tight;
    ports.beforeWrite = () => {
      if (ports.log.length === 2) throw new Error('killed');
    };
    await run(ports, rl({ learning_rate: 0.01 })).catch(() => undefined);
    ports.beforeWrite = () => undefined;
    ports.log.splice(0, ports.log.length, ...ports.log.filter(({ key }) => key !== 'end'));
    ports.engine.room = { ...tight, maxTokens: 4096 };
    expect(await run(ports, rl({ learning_rate: 0.01 }))).toBe('ended');
    expect([story(ports), filesOf(ports)]).toEqual([story(whole), filesOf(whole)]);
  });

  it('gives up on an engine that is lost again and again', async () => {
    const ports = memory();
    ports.engine.beforeCall = () => void (ports.engine.dieAt = ports.engine.calls - 1);
    expect(await run(ports, rl(config))).toBe('failed');
    expect(ports.log.at(-1)?.data['error_message']).toBe('The engine ended 5 times in the same step.');
  });

  it('rests without a word when the server stops, and fails when it is cancelled', async () => {
    const whole = await unbroken();
    for (const reason of ['shutdown', CANCELLED]) {
      const ports = memory();
      const controller = new AbortController();
      ports.engine.beforeCall = (call) => void (call === 9 && controller.abort(reason));
      expect(await run(ports, rl(config), controller.signal)).toBe(reason === CANCELLED ? 'failed' : 'stopped');
      expect(ports.engine.open).toBe(0);
      if (reason === CANCELLED) {
        expect(ports.log.at(-1)?.data['error_message']).toBe('The job was cancelled.');
        expect(ports.made).toEqual([]);
        continue;
      }
      expect(types(ports)).not.toContain('training_failed');
      ports.engine.beforeCall = () => undefined;
      expect(await run(ports, rl(config))).toBe('ended');
      expect(filesOf(ports)).toEqual(filesOf(whole));
    }
  });
});

describe('a job that stops while no engine is ready', () => {
  it.each(['shutdown', CANCELLED])('does not wait for one to train with (%s)', async (reason) => {
    const ports = memory();
    let ready: (() => void) | null = null;
    const open = ports.engine.openTrainer.bind(ports.engine);
    ports.engine.openTrainer = async (state) => {
      await new Promise<void>((resolve) => (ready = resolve));
      return open(state);
    };
    const controller = new AbortController();
    const rest = run(ports, rl(), controller.signal);
    const getReady = await vi.waitUntil(() => ready);
    controller.abort(reason);
    expect(await rest).toBe(reason === CANCELLED ? 'failed' : 'stopped');
    // The trainer that it gets after all is closed.
    getReady();
    await new Promise((resolve) => setImmediate(resolve));
    expect(ports.engine.open).toBe(0);
    expect(ports.engine.calls).toBe(0);
  });

  it('does not wait for one to serve its step, and ends once there is one', async () => {
    const ports = memory();
    const controller = new AbortController();
    const load = ports.engine.loadAdapter.bind(ports.engine);
    ports.engine.loadAdapter = () => {
      setImmediate(() => controller.abort('shutdown'));
      return new Promise(() => undefined);
    };
    expect(await run(ports, rl(), controller.signal)).toBe('stopped');
    expect(types(ports)).not.toContain('training_failed');
    ports.engine.loadAdapter = load;
    expect(await run(ports, rl())).toBe('ended');
    expect(ports.made).toHaveLength(1);
  });

  it('has its step where it is cancelled too late', async () => {
    const ports = memory();
    const controller = new AbortController();
    ports.engine.loadAdapter = async () => {
      controller.abort(CANCELLED);
      await new Promise((resolve) => setImmediate(resolve));
    };
    expect(await run(ports, rl(), controller.signal)).toBe('ended');
    expect(types(ports).at(-1)).toBe('training_ended');
  });
});

describe('a checkpoint', () => {
  it('of step 0 lets others have their turn while it is drawn', async () => {
    let turns = 0;
    let drawn = false;
    const count = (): void => {
      if (drawn) return;
      turns++;
      setImmediate(count);
    };
    setImmediate(count);
    await identityAdapter({ ...FAKE_SPEC, layers: 4 }, 'm');
    drawn = true;
    // One after each factor.
    expect(turns).toBeGreaterThanOrEqual(4 * 7);
  });

  it('of step 0 changes nothing and is the same for the same model', async () => {
    const ports = memory();
    await run(ports, rl({}, 'unused'));
    const identity = await readAdapter(ports.made[0]?.adapter.directory ?? '');
    expect(identity.scale).toBe(2);
    const write = (model: string) => writeIdentityCheckpoint(ports.folder, FAKE_SPEC, 'starter', model);
    const version = await write('m');
    expect(await write('m')).toBe(version);
    const { factors } = await readAdapter(ports.folder);
    expect(factors).toHaveLength(7);
    expect(factors.every(({ b }) => b.every((value) => value === 0))).toBe(true);
    const bound = 1 / Math.sqrt(FAKE_SPEC.hiddenSize);
    const [query] = factors;
    expect(query?.a.every((value) => Math.abs(value) <= bound)).toBe(true);
    expect(new Set(query?.a).size).toBeGreaterThan(60);
    expect(await write('other')).not.toBe(version);
    const config = JSON.parse(readFileSync(join(ports.folder, 'adapter_config.json'), 'utf8')) as object;
    expect(config).toMatchObject({ peft_type: 'LORA', r: 8, lora_alpha: 16, base_model_name_or_path: 'starter' });
  });
});
