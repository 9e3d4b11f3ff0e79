"""What a recurrent state holds: norm, effective rank, decay, and how exactly a solver solves."""
