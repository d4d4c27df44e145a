/** Trajectories as clients send them and `intake/trajectory-check.ts` lets them in. Messages keep whatever keys they came with. */

/** Of messages; a template leaves out others without a word. `ipython` is Llama's name for a tool. */
export const ROLES: readonly string[] = ['system', 'developer', 'user', 'assistant', 'tool', 'function', 'ipython'];

/** A message dictionary: system, developer, user, assistant, tool or function. */
export interface MessageElement {
  role: string;
  content?: unknown;
  [key: string]: unknown;
}

/** Of one sampled token. */
export interface LogprobEntry {
  /** `token_id:<id>`, or its text. */
  token: string;
  logprob: number;
}

/** A choice of a chat completion: what may be trained. */
export interface ChoiceElement {
  finish_reason?: unknown;
  message: { content?: unknown; tool_calls?: unknown; [key: string]: unknown };
  logprobs?: { content?: LogprobEntry[] | null; refusal?: LogprobEntry[] | null } | null;
  /** The sampled ids, verbatim. */
  token_ids?: number[] | null;
  /** The real prompt. */
  prompt_token_ids?: number[] | null;
  /** The completion's id, where ids and log-probabilities are to be looked up; `index` names the choice. */
  request_id?: string | null;
  index?: number | null;
  [key: string]: unknown;
}

export type HistoryElement = MessageElement | ChoiceElement;

export interface History {
  messages_and_choices: HistoryElement[];
  tools?: unknown[] | null;
}

export interface Trajectory extends Partial<History> {
  additional_histories?: History[] | null;
  /** true is 1, false 0. */
  reward?: number | boolean;
  initial_policy_version?: number | null;
  final_policy_version?: number | null;
  metrics?: Record<string, number | boolean> | null;
  metadata?: Record<string, unknown> | null;
  logs?: string[] | null;
  start_time?: string | null;
}

export interface TrajectoryGroup {
  trajectories: Trajectory[];
  exceptions?: unknown[] | null;
  metadata?: Record<string, unknown> | null;
  metrics?: Record<string, number | boolean> | null;
  logs?: string[] | null;
}

/** The clients' own rule. */
export function isChoice(element: HistoryElement): element is ChoiceElement {
  return 'finish_reason' in element && typeof element['message'] === 'object' && element['message'] !== null;
}

/** A Choice is the assistant's. */
export function messageOf(element: HistoryElement): MessageElement {
  return isChoice(element) ? { ...element.message, role: 'assistant' } : element;
}

export function rewardsOf({ trajectories }: TrajectoryGroup): number[] {
  return trajectories.map(({ reward }) => Number(reward ?? 0));
}

/** The main history and the additional ones. */
export function historiesOf(trajectory: Trajectory): History[] {
  const main = { messages_and_choices: trajectory.messages_and_choices ?? [], tools: trajectory.tools ?? null };
  return [main, ...(trajectory.additional_histories ?? [])];
}

/** Of the main history (0) or an additional one, for errors. */
export function historyPath(trajectoryPath: string, index: number): string {
  const history = index === 0 ? trajectoryPath : `${trajectoryPath}.additional_histories.${index - 1}`;
  return `${history}.messages_and_choices`;
}
