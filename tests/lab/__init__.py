"""Does the lab measure and pretend truthfully?"""
