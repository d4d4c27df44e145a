/** A request's place in the queue: lower is earlier, 0 asks for nothing. */
import type { SamplingFields } from '../../schemas/sampling-fields.ts';
import { ApiError } from '../errors.ts';

/** A proxy sets it for clients that cannot, so it goes before what the body says. */
export const PRIORITY_HEADER = 'X-Vllm-Priority';

export interface PriorityRules {
  /** The queue is ordered by priority. */
  priorities: boolean;
  /** The header as it was sent; empty: it was not. */
  priorityHeader: string;
}

/** Throws where the queue has no priorities and the request's is other than 0. */
export function toPriority(body: SamplingFields, { priorities, priorityHeader }: PriorityRules): number {
  const fromHeader = priorityHeader !== '';
  const priority = fromHeader ? headerPriority(priorityHeader) : (body.priority ?? 0);
  if (priority === 0 || priorities) return priority;
  const message = `Got priority ${priority} but Priority scheduling is not enabled.`;
  throw new ApiError('invalid_parameter', message, fromHeader ? PRIORITY_HEADER : 'priority');
}

function headerPriority(text: string): number {
  if (/^[+-]?\d{1,19}$/.test(text)) return Number(text) + 0;
  throw new ApiError('invalid_parameter', `${PRIORITY_HEADER} must be a whole number.`, PRIORITY_HEADER);
}
