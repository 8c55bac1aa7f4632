from spt.cli import main

main()
