"""Real data: the CAMPUS auditorium (boxes and times, no looks) and RoundaboutHD's matches (looks and order)."""
