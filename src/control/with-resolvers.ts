interface Resolvers<T> {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (error: Error) => void;
}

/** Promise.withResolvers, which Node.js has from 22 on. */
export function withResolvers<T>(): Resolvers<T> {
  let resolve: Resolvers<T>['resolve'] = () => undefined;
  let reject: Resolvers<T>['reject'] = () => undefined;
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}
