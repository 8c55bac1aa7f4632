"""Git, and nothing else: the only importers of pygit2 and the only callers of the git program.

objects -> tree -> merge, patch -> compose; program -> store -> worktree, incoming; message stands alone
"""
