/**
 * Trajectory groups and rows as JSON whose tools keep their numbers (`control/json-numbers.ts`) within `parameters`, as those of a chat do:
 * a tool's bound of 1.0 is to be the same text in the prompt that is trained on as in the one that was answered.
 */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { fromTagged, stringEnd, tagNumbers, toTagged, untagText } from '../json-numbers.ts';
import type { History, Trajectory, TrajectoryGroup } from './trajectories.ts';

/** Exact in JSON: within a text its quotes would be escaped. */
const TOOLS = /[{,]\s*"tools"\s*:\s*(?=\[)/g;

type Json = Record<string, unknown>;

/** JSON.parse of a group, or of a row with `tools`, of any shape. Numbers outside of its tools are JavaScript's. */
export function parseWithTools(text: string): unknown {
  const value: unknown = JSON.parse(text);
  const tagged = tagTools(text);
  if (tagged === text) return value;
  const sources = holdersOf(JSON.parse(tagged));
  for (const [index, holder] of holdersOf(value).entries()) takeParameters(holder['tools'], sources[index]?.['tools']);
  return value;
}

/** JSON.stringify of a group that parseWithTools gave and that has been checked. */
export function writeGroup(group: TrajectoryGroup): string {
  const trajectories = changed(group.trajectories, taggedTrajectory);
  if (trajectories === group.trajectories) return JSON.stringify(group);
  return untagText(JSON.stringify({ ...group, trajectories }));
}

/** The same of a row. */
export function writeRow(row: { tools: unknown }): string {
  const tagged = withTaggedTools(row);
  return tagged === row ? JSON.stringify(row) : untagText(JSON.stringify(tagged));
}

function tagTools(text: string): string {
  if (!text.includes('"tools"')) return text;
  const pieces: string[] = [];
  let from = 0;
  TOOLS.lastIndex = 0;
  while (TOOLS.test(text)) {
    const start = TOOLS.lastIndex;
    const end = listEnd(text, start);
    pieces.push(text.slice(from, start), tagNumbers(text.slice(start, end)));
    from = TOOLS.lastIndex = end;
  }
  return from === 0 ? text : pieces.join('') + text.slice(from);
}

/** Of the list that begins at `start`. */
function listEnd(text: string, start: number): number {
  const marks = /["[\]]/g;
  marks.lastIndex = start;
  let depth = 0;
  for (let match = marks.exec(text); match; match = marks.exec(text)) {
    if (match[0] === '"') marks.lastIndex = stringEnd(text, match.index);
    else if (match[0] === '[') depth++;
    else if (match[0] === ']' && --depth === 0) break;
  }
  return marks.lastIndex;
}

/** What may have tools that a template is shown, in order: a row, or the histories of a group. */
function holdersOf(value: unknown): Json[] {
  const histories = listIn(value, 'trajectories').flatMap((trajectory) => [
    trajectory,
    ...listIn(trajectory, 'additional_histories'),
  ]);
  return [value, ...histories].filter(isPlainObject);
}

function listIn(value: unknown, key: string): unknown[] {
  const list = isPlainObject(value) ? value[key] : null;
  return Array.isArray(list) ? list : [];
}

function takeParameters(tools: unknown, tagged: unknown): void {
  if (!Array.isArray(tools) || !Array.isArray(tagged)) return;
  for (const [index, tool] of tools.entries()) {
    const called: unknown = isPlainObject(tool) ? tool['function'] : null;
    if (!isPlainObject(called) || !isPlainObject(called['parameters'])) continue;
    const source = (tagged[index] as { function: Json }).function['parameters'];
    called['parameters'] = fromTagged(source);
  }
}

function taggedTrajectory(trajectory: Trajectory): Trajectory {
  const histories = trajectory.additional_histories ?? null;
  const others = histories && changed(histories, withTaggedTools<History>);
  return withTaggedTools(others === histories ? trajectory : { ...trajectory, additional_histories: others });
}

function withTaggedTools<T extends { tools?: unknown }>(holder: T): T {
  const tools = toTagged(holder.tools);
  return tools === holder.tools ? holder : { ...holder, tools };
}

/** The list itself where `change` leaves every item as it is. */
function changed<T>(list: T[], change: (item: T) => T): T[] {
  const items = list.map(change);
  return items.some((item, index) => item !== list[index]) ? items : list;
}
