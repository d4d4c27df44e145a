/** What is compiled before a constrained request is queued, and what is said of what fails. */
import { expect, it } from 'vitest';
import type { NativeGrammarSource } from '../../../src/control/engine/native-grammar.ts';
import { SERVE } from '../../../src/control/grammar/compile.ts';
import { compileConstraint } from '../../../src/control/sessions/compile-constraint.ts';
import { FakeEngine } from './fake-engine.ts';

const SOURCES: NativeGrammarSource[] = [
  { kind: 'json_object' },
  { kind: 'regex', text: 'a' },
  { kind: 'choice', choices: ['a'] },
  { kind: 'grammar', text: 'root ::= "a"' },
];

it.each(SOURCES)('tries a pattern of white space before $kind', async (source) => {
  const engine = new FakeEngine();
  const options = { ...SERVE, space: '(' };
  const compile = () =>
    compileConstraint(engine, 't', { grammar: { source, options }, param: 'structured_outputs' }, undefined);
  await compile();
  expect(engine.compiled).toEqual([
    { source: { kind: 'json_object' }, options },
    { source, options },
  ]);
  engine.compileFailure = { kind: 'malformed', message: 'pattern: no' };
  const message = 'structured_outputs.whitespace_pattern cannot be used: pattern: no';
  await expect(compile()).rejects.toMatchObject({ code: 'bad_request', param: 'structured_outputs', message });
});

it.each(SOURCES)('compiles $kind alone where no pattern is given', async (source) => {
  const engine = new FakeEngine();
  const grammar = { source, options: SERVE };
  await compileConstraint(engine, 't', { grammar, param: 'response_format' }, undefined);
  expect(engine.compiled).toEqual([grammar]);
});
