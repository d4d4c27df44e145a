/** The pieces of a structural tag, and what a tool is to them. */

export interface Tool {
  name: string;
  /** JSON Schema of an object. */
  parameters: Record<string, unknown>;
  strict: boolean;
  /** In the request's list. */
  index: number;
}

export type Format = { type: string } & Record<string, unknown>;

export function constant(value: string): Format {
  return { type: 'const_string', value };
}

export function sequence(...elements: Format[]): Format {
  return { type: 'sequence', elements };
}

export function either(...elements: Format[]): Format {
  return { type: 'or', elements };
}

export function schemaFormat(schema: unknown): Format {
  return { type: 'json_schema', json_schema: schema };
}

/** What may be left out. */
export function perhaps(format: Format): Format {
  return either(format, constant(''));
}

export function tag(begin: string, content: Format, end: string): Format {
  return { type: 'tag', begin, content, end };
}
