"""Runs the task below in lm-eval, through its local-completions, against the server at the first argument's address.

Prints a JSON list of [context, continuation, log likelihood, whether it is greedy].
"""

import json
import os
import sys
import tempfile

ADDRESS = sys.argv[1]
DOCS = [
    {"prompt": "2 + 2 =", "choices": [" 4", " 7", " 12"], "answer": 0},
    {"prompt": "The red fox", "choices": [" jumps over the hill.", " is"], "answer": 1},
    {"prompt": "What is 20 + 22?", "choices": [" 42", " It is a number."], "answer": 0},
]
TASK = """\
task: ours
dataset_path: json
dataset_kwargs: {data_files: {test: DOCS}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""


def main():
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = folder
        docs = os.path.join(folder, "docs.json")
        with open(docs, "w") as file:
            json.dump(DOCS, file)
        with open(os.path.join(folder, "ours.yaml"), "w") as file:
            file.write(TASK.replace("DOCS", docs))
        import lm_eval
        from lm_eval.tasks import TaskManager

        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args=f"model=tiny,base_url={ADDRESS}/v1/completions,tokenizer_backend=remote,num_concurrent=2,max_retries=1",
            tasks=["ours"],
            task_manager=TaskManager(include_path=folder, include_defaults=False),
            log_samples=True,
            bootstrap_iters=0,
        )
    answers = []
    for sample in found["samples"]["ours"]:
        for arguments, response in zip(sample["arguments"], sample["filtered_resps"]):
            answers.append([*arguments, float(response[0]), response[1] in (True, "True")])
    print(json.dumps(answers))


main()
