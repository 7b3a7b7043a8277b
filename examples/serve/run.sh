#!/usr/bin/env bash
# Sends each request of this folder to a server (default: http://localhost:8080) and writes what it
# answers beside the request: `mlx-infer serve &`, then `examples/serve/run.sh`.
set -euo pipefail
cd "$(dirname "$0")"
server=${1:-http://localhost:8080}

send() {
  curl -sN "$server$2" -H 'Content-Type: application/json' -d "@$1.json" >"$3"
}

send chat /v1/chat/completions chat.answer.json
send stream /v1/chat/completions stream.answer.txt
send echo /v1/completions echo.answer.json
send responses /v1/responses responses.answer.json
send messages /v1/messages messages.answer.json
send classify /v1/classify classify.answer.json
send embeddings /v1/embeddings embeddings.answer.json
send tokenize /tokenize tokenize.answer.json
send schema /v1/chat/completions schema.answer.json
send tools /v1/chat/completions tools.answer.json
send systemone /v1/systemone systemone.answer.json
