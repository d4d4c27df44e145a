import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { RowRefusedError } from '../../../src/control/engine/training.ts';
import { type RlJob } from '../../../src/control/training/ports.ts';
import { identityAdapter } from '../../../src/control/training/adapter-init.ts';
import {
  readAdapter,
  readCheckpoint,
  writeIdentityCheckpoint,
} from '../../../src/control/training/checkpoint-files.ts';
import type { TrajectoryGroup } from '../../../src/control/training/trajectories.ts';
import { FAKE_SPEC } from './fake-engine.ts';
import { filesOf, MemoryPorts, run, types } from './memory-ports.ts';
import { user, choice, group, GROUPS, THREE_ROWS, rl, sft } from './memory-jobs.ts';

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

  it('counts no time before its steps as theirs', async () => {
    const ports = memory();
    ports.engine.beforeCall = (call) =>
      call < 3 ? new Promise((resolve) => setTimeout(resolve, 400)) : Promise.resolve();
    await run(ports, rl({ ...THREE_ROWS, precalculate_logprobs: true }));
    expect(ports.log[1]?.data['eta_seconds']).toBeLessThan(1);
  });

  it('advances the step where nothing is to be trained', async () => {
    const ports = memory({ groups: [group('a', [1, 1]), group('b', [0.5]), { trajectories: [] }] });
    expect(await run(ports, rl())).toBe('ended');
    expect(types(ports)).toEqual(['training_started', 'training_ended']);
    expect(ports.log[0]?.data).toMatchObject({ num_sequences: 0, num_groups_submitted: 3, num_groups_trainable: 0 });
    expect(ports.made).toHaveLength(1);
    expect(ports.engine.calls).toBe(0);
    const row = { 'train/num_gradient_steps': 0, 'train/reward': 2.5 / 3, 'train/num_groups_submitted': 3 };
    expect(ports.rows.get('job/end')).toMatchObject(row);
    const none = memory({ groups: [{ trajectories: [], exceptions: [{}] }] });
    await run(none, rl());
    expect(none.rows.get('job/end')).toMatchObject({ 'train/exception_rate': 1 });
    expect(none.rows.get('job/end')).not.toHaveProperty('train/reward');
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
    const three = memory();
    three.engine.poison = true;
    await run(three, rl());
    expect(three.rows.get('job/end')?.['train/skipped_step']).toBeCloseTo(1 / 3);
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
