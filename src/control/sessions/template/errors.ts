/** A template that cannot be rendered with this input: its own raise_exception, an error in it, or a limit. */
export class TemplateError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'TemplateError';
  }
}
