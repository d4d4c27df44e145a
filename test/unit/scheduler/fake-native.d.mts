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
  onLoad?: () => Promise<void> | void;
}

export class FakeNativeEngine implements NativeEngine {
  constructor(options: EngineOptions, hooks?: FakeHooks);
  readonly steps: number;
  readonly maxStepTokens: number;
  readonly maxOpen: number;
  readonly closed: boolean;
  step(plan: StepPlan): Promise<StepResult>;
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
