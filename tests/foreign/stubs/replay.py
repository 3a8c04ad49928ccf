"""An MCP server that gives recorded answers in their order; the standard library only.

Its first argument are the answers, lines of JSON; each has the id of the request that it answers.
"""

import json
import sys

answers = sys.argv[1].splitlines()
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        said = {**json.loads(answers.pop(0)), "id": asked["id"]}
        print(json.dumps(said), flush=True)
