/** An engine in memory: a test says what each choice generates. */
import type { EngineClient, EngineState, Places, SequenceHandle } from '../../../src/control/engine/client.ts';
import type { GrammarSpec } from '../../../src/control/engine/native-grammar.ts';
import type {
  EngineStats,
  GrammarFailure,
  SequenceOutput,
  SequenceRequest,
} from '../../../src/control/engine/protocol.ts';

export type Submitted = Omit<SequenceRequest, 'id' | 'resumeIds'>;

const NO_STATS: EngineStats = {
  running: 0,
  waiting: 0,
  pagesTotal: 0,
  pagesUsed: 0,
  preemptions: 0,
  steps: 0,
  promptTokens: 0,
  generatedTokens: 0,
  stepMicros: 0,
  stepTokens: { counts: [], sum: 0 },
  prefixCacheQueries: 0,
  prefixCacheHits: 0,
};

export class FakeEngine implements EngineClient {
  readonly state: EngineState = 'ready';
  requests: Submitted[] = [];
  aborted: number[] = [];
  streamed: number[] = [];
  refuseWith: Error | null = null;
  #sink: ((index: number, output: SequenceOutput) => void) | null = null;

  submit(requests: Submitted[], sink: (index: number, output: SequenceOutput) => void): SequenceHandle[] {
    if (this.refuseWith) throw this.refuseWith;
    this.requests = requests;
    this.#sink = sink;
    return requests.map((_, index) => ({
      id: index,
      markStreamed: () => void this.streamed.push(index),
      abort: () => void this.aborted.push(index),
    }));
  }

  /** Kept at the moment, of all requests. */
  places = 0;

  reserve(_tenant: string, count: number): Places {
    if (this.refuseWith) throw this.refuseWith;
    this.places += count;
    let held = count;
    const release = () => {
      this.places -= held;
      held = 0;
    };
    return { release };
  }

  /** One engine output of one choice. */
  emit(
    index: number,
    tokens: number[],
    finish: SequenceOutput['finish'] = null,
    more: Partial<SequenceOutput> = {},
  ): void {
    this.#sink?.(index, {
      id: index,
      tokens,
      logprobs: [],
      ranks: [],
      top: [],
      finish,
      cachedTokens: 0,
      ...more,
    });
  }

  compiled: GrammarSpec[] = [];
  compileFailure: GrammarFailure | null = null;

  compileGrammar(_tenant: string, grammar: GrammarSpec): Promise<GrammarFailure | null> {
    this.compiled.push(grammar);
    return Promise.resolve(this.compileFailure);
  }

  ready(): Promise<void> {
    return Promise.resolve();
  }

  stats(): EngineStats {
    return NO_STATS;
  }

  drain(): Promise<void> {
    return Promise.resolve();
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}
