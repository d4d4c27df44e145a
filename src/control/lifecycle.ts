/**
 * States of models, checkpoints and jobs, and the only ways between them. docs/training-lifecycle.md shows the same table;
 * a test compares them. Every change of a state in the store goes through `transition`.
 */
export const LIFECYCLE = {
  model: {
    active: { delete: 'deleted' },
    // A repeated delete is answered like the first.
    deleted: { delete: 'deleted' },
  },
  checkpoint: {
    // Nothing is listed or named before its files are durable and it can be served.
    unpublished: { publish: 'ready' },
    ready: { delete: 'deleted' },
    deleted: {},
  },
  job: {
    queued: { start: 'running', cancel: 'cancelled', fail: 'failed' },
    running: { requeue: 'queued', succeed: 'succeeded', fail: 'failed', cancel: 'cancelled' },
    succeeded: {},
    failed: {},
    cancelled: {},
  },
  artifact: {
    open: { commit: 'committed', delete: 'deleted' },
    committed: { delete: 'deleted' },
    deleted: { delete: 'deleted' },
  },
} as const satisfies Record<string, Record<string, Record<string, string>>>;

export type LifecycleKind = keyof typeof LIFECYCLE;
export type StateOf<Kind extends LifecycleKind> = keyof (typeof LIFECYCLE)[Kind] & string;
export type JobState = StateOf<'job'>;

export const JOB_STATES = Object.keys(LIFECYCLE.job) as JobState[];

/** Thrown where the state does not allow what was asked: nothing has changed. */
export class TransitionError extends Error {
  readonly state: string;
  constructor(kind: LifecycleKind, state: string, action: string) {
    super(`A ${kind} that is ${state} cannot ${action}.`);
    this.name = 'TransitionError';
    this.state = state;
  }
}

export function transition<Kind extends LifecycleKind>(kind: Kind, state: string, action: string): StateOf<Kind> {
  const table: Record<string, Record<string, string>> = LIFECYCLE[kind];
  const next = Object.hasOwn(table, state) ? table[state] : undefined;
  if (next === undefined || !Object.hasOwn(next, action)) throw new TransitionError(kind, state, action);
  return next[action] as StateOf<Kind>;
}

/** Whether nothing more happens to a job in this state. */
export function hasEnded(state: string): boolean {
  const table: Record<string, object> = LIFECYCLE.job;
  return Object.hasOwn(table, state) && Object.keys(table[state] ?? {}).length === 0;
}
