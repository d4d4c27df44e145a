/** What stays the same in every part of one answer. */
import type { OutputOptions } from '../requests/output-options.ts';

export interface Envelope {
  id: string;
  /** Unix seconds. */
  created: number;
  model: string;
  systemFingerprint: string;
  output: OutputOptions;
  /** Log-probabilities were asked for. */
  logprobs: boolean;
  serviceTier: 'default' | 'priority';
}
