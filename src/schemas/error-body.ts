/** The one shape of every error this server sends. */
export interface ErrorBody {
  error: {
    message: string;
    type: string;
    /** The request field at fault. */
    param: string | null;
    /** The HTTP status. */
    code: number;
  };
}
