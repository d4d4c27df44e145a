import type { ParsedDelta } from '../../control/sessions/parsers/output-parser.ts';
import type { ChoiceDelta } from '../../control/sessions/session.ts';

/** In order; of a reply that nothing took apart, what there is. */
export function piecesOf({ pieces, reasoning, text, toolCalls }: ChoiceDelta): ParsedDelta[] {
  if (pieces) return pieces;
  return [
    ...(reasoning === '' ? [] : [{ reasoning }]),
    ...(text === '' ? [] : [{ content: text }]),
    ...toolCalls.map((toolCall) => ({ toolCall })),
  ];
}
