/** Jobs that do not run in one piece: kills, faults, lost engines, stops, turns of others. */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { EngineUnavailableError } from '../../../src/control/engine/client.ts';
import { SessionError } from '../../../src/control/sessions/session.ts';
import { CANCELLED } from '../../../src/control/training/ports.ts';
import { filesOf, MemoryPorts, run, story, types } from './memory-ports.ts';
import { group, GROUPS, THREE_ROWS, rl } from './memory-jobs.ts';

const opened: MemoryPorts[] = [];
afterEach(() => {
  for (const ports of opened.splice(0)) ports.remove();
});

function memory(over: Partial<MemoryPorts> = {}): MemoryPorts {
  const ports = Object.assign(new MemoryPorts(), { groups: GROUPS }, over);
  opened.push(ports);
  return ports;
}

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

  it('waits for an engine, or for threads that render, where the server has them no more', async () => {
    const whole = await unbroken();
    const ports = memory();
    for (const fault of [new EngineUnavailableError('not running'), new SessionError('unavailable', 'no threads')]) {
      ports.engine.openError = fault;
      await expect(run(ports, rl(config))).rejects.toBe(fault);
    }
    ports.engine.openError = null;
    const load = vi.spyOn(ports.engine, 'loadAdapter').mockRejectedValueOnce(new EngineUnavailableError('not running'));
    await expect(run(ports, rl(config))).rejects.toThrow('not running');
    expect(types(ports)).not.toContain('training_failed');
    expect([await run(ports, rl(config)), load.mock.calls.length]).toEqual(['ended', 2]);
    expect([story(ports), filesOf(ports)]).toEqual([story(whole), filesOf(whole)]);
  });

  it('fails on a server that cannot train its model, unless its step is there', async () => {
    const ports = memory();
    const stop = new AbortController();
    ports.beforeWrite = () => {
      if (types(ports).length === 2) stop.abort('the server stops');
    };
    expect(await run(ports, rl(config), stop.signal)).toBe('stopped');
    ports.obstacle = 'Not here.';
    expect(await run(ports, rl(config))).toBe('failed');
    expect(ports.log.at(-1)?.data['error_message']).toBe('Not here.');
    expect(ports.made).toEqual([]);
    const made = memory();
    made.beforeWrite = () => {
      if (made.made.length > 0) throw hiccup();
    };
    await expect(run(made, rl(config))).rejects.toThrow('hiccups');
    const { length } = made.engine.loaded;
    made.beforeWrite = () => undefined;
    made.obstacle = 'Not here.';
    expect([await run(made, rl(config)), types(made).at(-1)]).toEqual(['ended', 'training_ended']);
    expect(made.engine.loaded).toHaveLength(length);
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

  it.each([1, 2])('lets others go first behind every %i steps, and ends the same', async (turn) => {
    const whole = await unbroken();
    const ports = memory();
    // Large snapshots are not saved behind every step; one that yields is.
    const { save } = ports.snapshots;
    ports.snapshots.save = async (...args) => {
      await save(...args);
      await sleep(100);
      return 2 ** 30;
    };
    const rests: string[] = [];
    while (rests.at(-1) !== 'ended' && rests.length < 9) {
      let steps = 0;
      rests.push(await run(ports, rl(config), undefined, () => Promise.resolve(++steps === turn)));
      expect(ports.engine.open).toBe(0);
    }
    expect(rests).toEqual([...Array<string>(turn === 1 ? 2 : 1).fill('yielded'), 'ended']);
    // None is taken twice.
    expect(ports.told.map(({ step }) => step)).toEqual([1, 2, 3]);
    expect([story(ports), filesOf(ports)]).toEqual([story(whole), filesOf(whole)]);
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
