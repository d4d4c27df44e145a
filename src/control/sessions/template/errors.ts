/** A template that cannot be rendered with this input: its own raise_exception, an error in it, or a limit. */
export class TemplateError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'TemplateError';
  }
}

/** Its own raise_exception: the template does not take this conversation. */
export class TemplateRefusal extends TemplateError {}
