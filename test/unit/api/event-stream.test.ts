/** The writer of one stream, over a response that only counts. */
import { EventEmitter } from 'node:events';
import type { ServerResponse } from 'node:http';
import { expect, test, vi } from 'vitest';
import { EventStream } from '../../../src/api/sse/event-stream.ts';
import { StreamBuffers } from '../../../src/api/sse/stream-buffers.ts';

class FakeResponse extends EventEmitter {
  statusCode = 0;
  readonly writes: string[] = [];
  writableLength = 0;
  destroyed = false;
  readonly req = { socket: { destroy: () => this.destroy() } };
  ended = false;
  /** Whether the reader takes what is written. */
  reading = true;
  readonly headers = new Map<string, string>();
  setHeader(name: string, value: string) {
    this.headers.set(name, value);
  }
  flushHeaders() {}
  write(text: string) {
    this.writes.push(text);
    if (!this.reading) this.writableLength += Buffer.byteLength(text);
    return this.reading;
  }
  end() {
    this.ended = true;
  }
  destroy() {
    this.destroyed = true;
    this.emit('close');
  }
}

function open(buffers: StreamBuffers, reading = true) {
  const response = new FakeResponse();
  response.reading = reading;
  const stream = new EventStream(response as unknown as ServerResponse, buffers);
  stream.open();
  return { response, stream };
}
const tick = () => new Promise((resolve) => setImmediate(resolve));

test('its headers ask proxies to hold nothing back: neither to gather events nor to compress them', () => {
  const { response } = open(new StreamBuffers(1000));
  expect(Object.fromEntries(response.headers)).toEqual({
    'Content-Type': 'text/event-stream; charset=utf-8',
    'Cache-Control': 'no-cache, no-transform',
    'X-Accel-Buffering': 'no',
  });
});

test('events of one tick leave in one write, later ones in another', async () => {
  const { response, stream } = open(new StreamBuffers(1000));
  stream.send({ a: 1 });
  await Promise.resolve();
  stream.send({ b: 'line\nbreak data: [DONE]' });
  await tick();
  stream.send({ c: 3 });
  stream.end();
  expect(response.writes).toEqual([
    'data: {"a":1}\n\ndata: {"b":"line\\nbreak data: [DONE]"}\n\n',
    'data: {"c":3}\n\ndata: [DONE]\n\n',
  ]);
  expect(response.ended).toBe(true);
  stream.end();
  stream.send({ late: true });
  await tick();
  expect(response.writes).toHaveLength(2);
});

test('a reader beyond its limit is cut; nothing is written afterwards', async () => {
  const buffers = new StreamBuffers(1000);
  const { response, stream } = open(buffers, false);
  for (let at = 0; at < 100; at++) {
    stream.send({ text: 'x'.repeat(100) });
    await tick();
  }
  stream.end();
  expect(response.destroyed).toBe(true);
  expect(response.ended).toBe(false);
  expect(response.writes.join('').length).toBeLessThan(1300);
  expect(buffers.held).toBe(0);
});

test('a burst within one tick is looked at when the socket has had it: a reader that takes it is not cut, another is', async () => {
  const burst = async (reading: boolean) => {
    const buffers = new StreamBuffers(100_000);
    const { response, stream } = open(buffers, false);
    for (let at = 0; at < 1000; at++) {
      stream.send({ text: 'x'.repeat(1000) });
      // As Node's socket does, which is corked until the tick ends.
      if (reading) process.nextTick(() => (response.writableLength = 0));
    }
    const held = buffers.held;
    await tick();
    return [held > 900_000, buffers.held, response.destroyed];
  };
  expect(await burst(true)).toEqual([true, 0, false]);
  expect(await burst(false)).toEqual([true, 0, true]);
});

test('what comes at once is given time, what comes after it is not', async () => {
  const buffers = new StreamBuffers(10_000);
  const { response, stream } = open(buffers, false);
  stream.send({ text: 'x'.repeat(5000) });
  await tick();
  for (let at = 0; at < 3; at++) stream.sendAtOnce({ text: 'x'.repeat(100_000) });
  await tick();
  expect([response.destroyed, buffers.held > 300_000]).toEqual([false, true]);
  // The reader takes two thirds of it; tokens follow.
  response.writableLength -= 200_000;
  stream.send({ text: 'x'.repeat(7000) });
  await tick();
  expect([response.destroyed, buffers.held < 120_000]).toEqual([false, true]);
  stream.send({ text: 'x'.repeat(7000) });
  await tick();
  expect([response.destroyed, buffers.held]).toEqual([true, 0]);
});

test('what came at once and was taken allows nothing more', async () => {
  const { response, stream } = open(new StreamBuffers(10_000), false);
  stream.sendAtOnce({ text: 'x'.repeat(100_000) });
  await tick();
  response.writableLength = 0;
  response.emit('drain');
  stream.send({ text: 'x'.repeat(9000) });
  await tick();
  expect(response.destroyed).toBe(false);
  stream.send({ text: 'x'.repeat(9000) });
  await tick();
  expect(response.destroyed).toBe(true);
});

test('all readers together are bounded, whether it came at once or not', async () => {
  const buffers = new StreamBuffers(10_000);
  const readers = Array.from({ length: 20 }, () => open(buffers, false));
  for (const { stream } of readers) stream.sendAtOnce({ text: 'x'.repeat(100_000) });
  await tick();
  for (const { stream } of readers) stream.send({ token: 'x' });
  await tick();
  expect(buffers.held).toBeLessThan(64 * 10_000);
});

test('when all readers together hold too much, small heaps are cut too', async () => {
  const buffers = new StreamBuffers(64 * 1024);
  const readers = Array.from({ length: 1000 }, () => open(buffers, false));
  for (let round = 0; round < 40; round++) {
    for (const { stream } of readers) stream.send({ text: 'x'.repeat(1024) });
    await tick();
  }
  expect(buffers.held).toBeLessThan(64 * 64 * 1024 + 1000 * 18 * 1024);
  expect(readers.some(({ response }) => response.destroyed)).toBe(true);
  for (const { response } of readers) if (!response.destroyed) response.destroy();
  expect(buffers.held).toBe(0);
});

test('a reader that catches up gives its share back', async () => {
  const buffers = new StreamBuffers(10_000);
  const { response, stream } = open(buffers, false);
  stream.send({ text: 'x'.repeat(5000) });
  await tick();
  expect(buffers.held).toBeGreaterThan(5000);
  response.writableLength = 0;
  response.emit('drain');
  expect(buffers.held).toBe(0);
});

test('what ended streams hold goes first when all together hold too much, the longest ago ended at first', async () => {
  const buffers = new StreamBuffers(64 * 1024);
  const held = 60 * 1024;
  const ended = Array.from({ length: 60 }, () => open(buffers, false));
  for (const { stream } of ended) {
    stream.send({ text: 'x'.repeat(held) });
    stream.end();
  }
  await tick();
  expect(ended.some(({ response }) => response.destroyed)).toBe(false);
  const running = Array.from({ length: 20 }, () => open(buffers, false));
  for (const { stream } of running) stream.send({ text: 'x'.repeat(held) });
  await tick();
  expect(running.some(({ response }) => response.destroyed)).toBe(false);
  const cut = ended.map(({ response }) => response.destroyed);
  expect(cut.indexOf(false)).toBeGreaterThan(5);
  expect(cut.lastIndexOf(true)).toBe(cut.indexOf(false) - 1);
});

test('of what has ended little stays, and no more is cut than makes room', () => {
  const perStream = 64 * 1024;
  const buffers = new StreamBuffers(perStream);
  const ended = [10_000, 60_000, 60_000].map((held) => {
    buffers.change(0, held);
    const stream = { held, cut: vi.fn(() => buffers.change(held, 0)) };
    buffers.linger(stream);
    return stream;
  });
  const all = 64 * perStream;
  buffers.change(0, all - 110_000);
  expect(ended.map(({ cut }) => cut.mock.calls.length)).toEqual([0, 1, 0]);
});

test('a stream that ended and was read, or whose reader left, is cut for nobody', async () => {
  const buffers = new StreamBuffers(1000);
  const { response, stream } = open(buffers, false);
  const [cut, forget] = [vi.spyOn(stream, 'cut'), vi.spyOn(buffers, 'forget')];
  stream.send({ text: 'x'.repeat(500) });
  stream.end();
  response.emit('close');
  expect(forget).toHaveBeenCalledWith(stream);
  expect(buffers.held).toBe(0);
  // Its connection may be another answer's by now.
  buffers.change(0, 100_000);
  expect(cut).not.toHaveBeenCalled();
});
