/**
 * Two threads that read what clients send to training. Large bodies are read one at a time, each for minutes; small ones do not wait for them, nor
 * for small ones of other entities. A thread that dies fails what it was reading.
 */
import type { ChatEncoder } from '../../sessions/open-chat.ts';
import { patient } from '../patient-chat.ts';
import { IntakeThread, type SampleSource } from './intake-thread.ts';
import type { IntakeResult, IntakeSettings, IntakeTask } from './protocol.ts';

const SMALL_BYTES = 4 * 2 ** 20;
/** What they take of a thread's memory together is less than what one large body may take. */
const SMALL_AT_ONCE = 8;

/** Before a full queue for rendering is asked again. */
const RETRY_MS = 1000;

export class IntakePool {
  readonly #closing = new AbortController();
  readonly #large: IntakeThread;
  readonly #small: IntakeThread;

  /** `chat` renders what jobs will train on. */
  constructor(settings: Omit<IntakeSettings, 'chatTemplate'>, samples: SampleSource, chat: ChatEncoder) {
    const parts = {
      settings: { ...settings, chatTemplate: chat.chatTemplate },
      samples,
      chat: patient(chat, RETRY_MS, this.#closing.signal),
    };
    this.#large = new IntakeThread({ ...parts, atOnce: 1 });
    this.#small = new IntakeThread({ ...parts, atOnce: SMALL_AT_ONCE });
  }

  /** `bytes` of the body. Rejects with ValidationError, ServiceError or what the file system said. */
  run<Task extends IntakeTask>(
    task: Task,
    entity: string,
    bytes: number,
  ): Promise<Extract<IntakeResult, { kind: Task['kind'] }>> {
    return (bytes <= SMALL_BYTES ? this.#small : this.#large).run(task, entity);
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await Promise.all([this.#large.close(), this.#small.close()]);
  }
}
