/**
 * Extensions of the engine: `npm start -- --engine-extension examples/extensions/thinking-budget.mjs`.
 *
 * - `thinking_budget: [budget, endId]` ends the reasoning of a reply after `budget` tokens by making `endId` (the id of
 *   `</think>`) the only token that may come, unless it came before.
 * - `stop_on_tokens: [id, id, ...]` ends the reply when its last tokens are these, in this order.
 */

function isTokenId(value) {
  return Number.isInteger(value) && value >= 0;
}

const thinkingBudget = {
  check(value) {
    const fine = Array.isArray(value) && value.length === 2 && value.every(isTokenId);
    if (!fine) throw new Error('give [budget, id of the token that ends the reasoning].');
  },
  create([budget, endId]) {
    return {
      // Depends on the tokens alone, as it must: after a restart of the engine a new instance goes on with them.
      step(tokens) {
        if (tokens.length < budget || tokens.includes(endId)) return undefined;
        return { allowed: [endId] };
      },
    };
  },
};

const stopOnTokens = {
  check(value) {
    const fine = Array.isArray(value) && value.length > 0 && value.every(isTokenId);
    if (!fine) throw new Error('give a list of token ids.');
  },
  create(wanted) {
    return {
      step(tokens) {
        const last = tokens.slice(-wanted.length);
        return { stop: last.length === wanted.length && last.every((id, index) => id === wanted[index]) };
      },
    };
  },
};

export const extensions = { thinking_budget: thinkingBudget, stop_on_tokens: stopOnTokens };
