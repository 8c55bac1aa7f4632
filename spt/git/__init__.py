"""Git, and nothing else: the only importers of pygit2 and the only callers of the git program.

program -> store -> tree -> merge, patch -> compose -> history, bundle, worktree
"""
