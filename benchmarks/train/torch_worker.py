"""PyTorch + PEFT, asked for one measurement at a time: JSON lines in and out."""
import json
import sys
import time


def peak_memory() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


class Peer:
    def load(self, directory, threads, rank, alpha, dtype, adapterDtype, modules):
        import peft
        import torch
        import transformers

        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        torch.manual_seed(1)
        self.torch = torch
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
        model.config.use_cache = False
        targets = [f"{name}_proj" for name in modules]
        config = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", target_modules=targets)
        self.model = peft.get_peft_model(model, config, autocast_adapter_dtype=adapterDtype == "float32").train()
        factors = [p for n, p in self.model.named_parameters() if "lora_" in n]
        for name, parameter in self.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.uniform_(parameter, -1e-3, 1e-3)
        self.factors = factors
        self.optimizer = torch.optim.AdamW(factors, lr=5e-6, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
        return {"variant": f"PyTorch {torch.__version__}, PEFT {peft.__version__}, weights {dtype}, adapters {adapterDtype}"}

    def step(self, rows):
        """Plain rows: every token but the first is predicted."""
        begin, cpu, loss = time.perf_counter(), time.process_time(), None
        for row in rows:
            ids = self.torch.tensor([row["tokens"]])
            found = self.model(input_ids=ids, labels=ids).loss
            found.backward()
            loss = float(found.detach()) if loss is None else loss
        self.torch.nn.utils.clip_grad_norm_(self.factors, 0.1)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu, "loss": loss}

    def memory(self):
        return peak_memory()


def main() -> None:
    peer = Peer()
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = {"result": getattr(peer, call["method"])(**(call.get("argument") or {}))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main()
