import type {
  EngineOptions,
  NativeAddon,
  NativeEngine,
  NativeGpu,
  SamplingSpec,
  StepPlan,
  StepResult,
} from '../../../src/control/engine/native.ts';

export interface FakeHooks {
  /** What models on cuda have. */
  gpu?: NativeGpu;
  onStep?: (step: number) => Promise<void> | void;
  /** While `step` is called, before it runs. */
  onCall?: () => void;
  nanPrompt?: number;
  /** Takes a step while another one runs, as the addon does. */
  queues?: boolean;
  onLoad?: () => Promise<void> | void;
}

export class FakeNativeEngine implements NativeEngine {
  constructor(options: EngineOptions, hooks?: FakeHooks);
  readonly steps: number;
  readonly maxStepTokens: number;
  readonly maxOpen: number;
  readonly closed: boolean;
  readonly busy: boolean;
  /** The step given last waits, or waited, for another one. */
  readonly waitsForStep: boolean;
  /** Rows that were planned ahead for nothing. */
  readonly rowsInVain: number;
  /** Steps that were taken back. */
  readonly joins: number;
  step(plan: StepPlan): Promise<StepResult>;
  retract?(): boolean;
  readPages(pages: Int32Array): Promise<Uint8Array>;
  writePages(pages: Int32Array, bytes: Uint8Array): Promise<void>;
  close(): void;
}

export function nextToken(
  history: ArrayLike<number>,
  index: number,
  sampling: SamplingSpec,
  vocabulary: number,
): number;
export function expectedOutputs(
  request: { promptIds: Int32Array; sampling: SamplingSpec },
  vocabulary: number,
  maxModelLen?: number,
): { tokens: number[]; finish: 'stop' | 'length' };
export function fakeAddon(hooks?: FakeHooks): NativeAddon;
