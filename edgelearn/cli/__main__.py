from edgelearn.cli import main

raise SystemExit(main())
