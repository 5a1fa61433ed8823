"""What every room uses: files written whole, shapes in signatures, child processes."""
