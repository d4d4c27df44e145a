/** Messages between the intake thread and the rest. Bodies go by path: a gigabyte never crosses the channel. */
import type { ValidationDetail } from '../../../schemas/validation-error.ts';
import type { OpenChat } from '../../sessions/open-chat.ts';
import type { SampledTokens } from '../fill-samples.ts';
import type { LogMeasures } from '../log-metrics.ts';

/** JSON.parse, and whatever looks at its result, would recurse as deep. */
export const MAX_JSON_DEPTH = 128;

export interface IntakeSettings {
  /** Ids at or above are no tokens. */
  vocabSize: number;
  maxGroupBytes: number;
  /** Of all other fields of a body together. */
  maxFieldBytes: number;
  maxTrajectories: number;
  maxRows: number;
  maxRowBytes: number;
  /** Source of the model's; null: it has none. */
  chatTemplate: string | null;
}

export type IntakeTask =
  | {
      /** Trajectory groups with the other fields of the request's body around them. */
      kind: 'trajectories';
      /** What is only logged may come from any model: its tokens are not checked. */
      use: 'train' | 'log';
      /** The body as it came. */
      source: string;
      /** Gets one group per line, compressed. */
      target: string;
    }
  | {
      /** train.jsonl or trajectories.jsonl. */
      kind: 'rows';
      source: string;
      target: string;
    };

export interface TrajectoriesRead {
  kind: 'trajectories';
  /** The body's other fields, not yet checked. */
  fields: Record<string, unknown>;
  /** How many; null: the body has no array of them. */
  groups: number | null;
  trajectories: number;
  /** Of groups that are logged; what is trained on is not measured. */
  measures: LogMeasures;
  /** The first fault where replies without log-probabilities are trained as well; null: none. */
  unscoredFault: ValidationDetail | null;
  /** SHA-256 of the body, 64 hex digits. */
  digest: string;
}

export interface RowsRead {
  kind: 'rows';
  rows: number;
  digest: string;
}

export type IntakeResult = TrajectoriesRead | RowsRead;

export type ToWorker =
  | { type: 'task'; id: number; task: IntakeTask; entity: string }
  | { type: 'samples'; id: number; found: Map<string, (SampledTokens | null)[]> }
  /** `refusal`: why the chat cannot be rendered; null: it can. `failed`: that could not be found out. */
  | { type: 'rendered'; id: number; refusal: string | null; failed: string | null };

export type FromWorker =
  | { type: 'done'; id: number; result: IntakeResult }
  | { type: 'invalid'; id: number; details: ValidationDetail[] }
  | { type: 'failed'; id: number; message: string; code: string | null }
  /** Which of these completions are remembered? */
  | { type: 'find'; id: number; entity: string; requestIds: string[] }
  /** Can it be rendered? */
  | { type: 'render'; id: number; chat: OpenChat };
