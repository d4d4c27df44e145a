/** A model directory that cannot be served; the message names the file and the option at fault, for the operator. */
export class ModelError extends Error {
  readonly file: string;
  constructor(file: string, message: string) {
    super(`${file}: ${message}`);
    this.name = 'ModelError';
    this.file = file;
  }
}

/** A folder, or a file that belongs in it, is not there. */
export class MissingFileError extends ModelError {
  constructor(file: string, message = 'is missing.') {
    super(file, message);
  }
}

/** What `git clone` leaves in place of a large file where Git LFS is not installed. */
export const GIT_LFS_MARK = 'version https://git-lfs';
export const GIT_LFS_POINTER = 'is a Git LFS pointer instead of the file itself: `git lfs pull` fetches it.';

/** Sound as far as it was read, but it needs what the native engine does not do; another engine may. */
export class UnsupportedModelError extends ModelError {}
