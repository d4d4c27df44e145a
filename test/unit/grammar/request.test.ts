import { describe, expect, it } from 'vitest';
import { grammarRequest } from '../../../src/control/grammar/request.ts';
import { rawMember } from '../../../src/control/grammar/raw-member.ts';

describe('grammarRequest', () => {
  it('reads response_format', () => {
    expect(grammarRequest(null, null)).toBeNull();
    expect(grammarRequest({ type: 'text' }, undefined)).toBeNull();
    expect(grammarRequest({ type: 'json_object' }, null)?.source).toEqual({ kind: 'json_object' });
    const schema = { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'integer' } } };
    expect(grammarRequest(schema, null)?.source).toEqual({ kind: 'json_schema', text: '{"type":"integer"}' });
    const unnamed = { type: 'json_schema', json_schema: { schema: {} } };
    expect(() => grammarRequest(unnamed, null)).toThrow('json_schema.name must be a string');
    expect(() => grammarRequest({ type: 'json_schema' }, null)).toThrow("the 'json_schema' field must be provided");
  });

  it('takes exactly one kind', () => {
    expect(grammarRequest(null, {})).toBeNull();
    expect(() => grammarRequest(null, { disable_any_whitespace: true })).toThrow('must use one kind');
    const common = "only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').";
    expect(() => grammarRequest(null, { regex: 'a', choice: ['b'] })).toThrow(common);
    expect(() => grammarRequest({ type: 'json_object' }, { json: {}, regex: 'a' })).toThrow(common);
    expect(() => grammarRequest(null, { grammar: 'root ::= "a"', regex: 'a' })).toThrow(
      'only use one kind of structured outputs constraint',
    );
    expect(() => grammarRequest({ type: 'json_object' }, { regex: 'a' })).toThrow('only use one kind');
    expect(grammarRequest({ type: 'json_object' }, { disable_any_whitespace: true })?.options.anySpace).toBe(false);
  });

  it('takes a pattern of white space as it is, an empty one for none', () => {
    const options = (fields: object) => grammarRequest({ type: 'json_object' }, fields)?.options;
    expect(options({ whitespace_pattern: ' ?' })).toMatchObject({ anySpace: true, space: ' ?' });
    expect(options({ whitespace_pattern: '' })).toMatchObject({ anySpace: false });
    expect(options({ whitespace_pattern: null })).toMatchObject({ anySpace: true, space: '' });
    expect(() => options({ whitespace_pattern: 3 })).toThrow('whitespace_pattern must be a string');
  });

  it('names what is wrong with a kind', () => {
    expect(() => grammarRequest(null, { choice: [] })).toThrow('choice must be a list that is not empty');
    expect(() => grammarRequest(null, { regex: 3 })).toThrow('regex must be a string');
    expect(() => grammarRequest(null, { regex: 'a\0' })).toThrow('NUL');
    expect(() => grammarRequest(null, { grammar: '' })).toThrow('grammar must not be empty');
    expect(() => grammarRequest(null, { json: '' })).toThrow('json must not be empty');
    expect(() => grammarRequest(null, { structural_tag: [] })).toThrow('structural_tag must be a string');
    expect(() => grammarRequest(null, { json_object: false })).toThrow('json_object must be true');
    expect(() => grammarRequest(null, { regex: 'a', _backend: 'other' })).toThrow('backend selection');
  });
});

it('leaves the text of a schema or tag to the compiler: parsing it here could hold up everybody for seconds', () => {
  for (const kind of ['json', 'structural_tag'])
    expect(grammarRequest(null, { [kind]: '{ "a"' })?.source).toMatchObject({ text: '{ "a"' });
});

describe('rawMember', () => {
  it('keeps the text of a member as it was written', () => {
    expect(rawMember('{"a": 1e400, "schema" : {"const": 1.00} }', 'schema')).toBe('{"const": 1.00}');
    expect(rawMember('{"schema":true,"instances":[{"schema":1}]}', 'schema')).toBe('true');
    expect(rawMember('{"x": {"schema": 1}}', 'schema')).toBeNull();
    expect(rawMember('[{"schema": 1}]', 'schema')).toBeNull();
    expect(rawMember('{"schema": "a \\" , } b"}', 'schema')).toBe('"a \\" , } b"');
  });
});
