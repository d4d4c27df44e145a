/** Faults that tests ask for by name in EngineConfig.faults; production passes none. */
import type { NativeEngine, StepPlan, StepResult } from './native.ts';

const FORMS = ['step-error-at=N', 'crash-at-step=N', 'hang-at-step=N', 'slow-steps-ms=N'] as const;

interface Fault {
  name: string;
  value: number;
}

/** Throws when a fault is not known: a typing error must not turn a test green. */
export function parseFaults(faults: string[]): Fault[] {
  return faults.map((text) => {
    const match = /^([a-z-]+)=(\d+)$/.exec(text);
    const known = match && FORMS.some((form) => form === `${match[1]}=N`);
    if (!known) throw new Error(`Fault '${text}' is not one of ${FORMS.join(', ')}.`);
    return { name: match[1] as string, value: Number(match[2]) };
  });
}

/** The engine with the faults in front of it; the engine itself when there are none. Steps count from 1. */
export function withFaults(engine: NativeEngine, faults: string[]): NativeEngine {
  const parsed = parseFaults(faults);
  if (parsed.length === 0) return engine;
  let steps = 0;
  const step = async (plan: StepPlan): Promise<StepResult> => {
    steps++;
    for (const fault of parsed) await inject(fault, steps);
    return engine.step(plan);
  };
  const { readPages, writePages } = engine;
  return {
    step,
    readPages: (pages) => readPages.call(engine, pages),
    writePages: (pages, bytes) => writePages.call(engine, pages, bytes),
    close: () => engine.close(),
  };
}

async function inject(fault: Fault, step: number): Promise<void> {
  if (fault.name === 'slow-steps-ms') await new Promise((resolve) => setTimeout(resolve, fault.value));
  if (step !== fault.value) return;
  if (fault.name === 'step-error-at') throw new Error(`Injected: step ${step} fails.`);
  if (fault.name === 'crash-at-step') process.kill(process.pid, 'SIGKILL');
  if (fault.name === 'hang-at-step') await new Promise(() => {});
}
